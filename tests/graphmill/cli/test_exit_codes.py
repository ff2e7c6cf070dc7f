"""Exit codes of commands: every kind of wrong input gives 2."""

import errno
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pytest

import graphmill
from graphmill import config, storage
from graphmill.checkpoints import pbg
from graphmill.checkpoints.recis import checkpoint as recis
from graphmill.checkpoints.recis.safetensors import SafetensorsFile
from graphmill.cli import exit_codes, session
from graphmill.cluster import connect, num_cores
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError, FormatError, PathError, StorageError
from graphmill.formats import entity_counts, entity_index
from graphmill.machine import shortage
from remap.graphstorm.commit import JOURNAL, read_journal, work_uri
from tests.commands import Submit, code_of
from tests.graphmill.smallest import GRAPH, write_conf

DEEP = "[" * 200_000


def test_the_end_of_a_stream_is_not_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.option("--interrupted", is_flag=True)
    def command(interrupted: bool) -> None:
        raise KeyboardInterrupt if interrupted else EOFError("a file was cut short")

    assert code_of(command) == 1
    assert "a file was cut short" in capsys.readouterr().err
    assert code_of(command, "--interrupted") == 130
    assert "stopped by Ctrl-C" in capsys.readouterr().err


def test_a_run_that_has_changed_nothing_leaves_the_record_of_an_earlier_one() -> None:
    run: Any = SimpleNamespace(is_begun=False, has_earlier=True)  # without `finish`
    assert not session._record_failure(run, StorageError("gone"), 0)


def test_a_script_that_ends_itself() -> None:
    for code, expected in ((None, 0), (0, 0), (5, 5), ("what was wrong", 1)):
        assert exit_codes.exit_code(lambda code=code: sys.exit(code)) == expected


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 9 failed"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"),
    ],
)
def test_too_little_memory_is_no_defect(error, monkeypatch, capsys):
    def fail() -> None:
        raise error

    for limit, help_ in ((-1, "more memory"), (10**10, "`ulimit -v` leaves 10 GB")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, -1))
        assert exit_codes.exit_code(fail) == 1
        told = capsys.readouterr().err
        assert "error: too little memory: " in told
        assert help_ in told
    for other in (ValueError("out of memory"), ImportError("no module named x"), OSError(5, "x")):
        assert shortage.remedy(other) is None


@pytest.mark.parametrize(("uri", "has_folder"), [("hdfs://shop/x", False), ("hdfs:///x", True)])
def test_hdfs_that_no_configuration_names(uri, has_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    if has_folder:
        (tmp_path / "core-site.xml").write_text("<configuration/>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"set HADOOP_CONF_DIR, .*hdfs://HOST:PORT"):
        storage.exists(uri)


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "nan", "inf"])
def test_variables_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("GRAPHMILL_HDFS_TIMEOUT_S", limit)
    with pytest.raises(ConfigError, match=f"GRAPHMILL_HDFS_TIMEOUT_S: expected seconds, found '{limit}'"):
        storage.exists("hdfs://127.0.0.1:1/x")
    monkeypatch.setenv("GRAPHMILL_NUM_CORES", limit)
    with pytest.raises(ConfigError, match=f"GRAPHMILL_NUM_CORES: .* 1 or more, found '{limit}'"):
        num_cores()


READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "run.json of a run": ("run.json", graphmill.open),
    "a marker": ("_SUCCESS", storage.read_marker),
    "entity names": ("entity_names_a_0.json", lambda f: entity_counts.read_entity_names(f, "a", 0)),
    "the entity index": ("entity_index/manifest.json", entity_index.read_manifest),
    "a checkpoint's configuration": ("config.json", pbg.read_config),
    "a checkpoint's statistics": ("training_stats.json", pbg.read_stats),
    "RecIS' side file": (recis.SIDE_FILE, lambda f: recis.read_recorded(f"{f}/{recis.SIDE_FILE}")),
    "a journal": (work_uri("", JOURNAL).lstrip("/"), read_journal),
}


@pytest.mark.parametrize("text", [DEEP, "9" * 5000, "{", "\udcff", '"text"'])
@pytest.mark.parametrize("name", READERS)
def test_json_that_is_refused(name: str, text: str, tmp_path: Path) -> None:
    path, read = READERS[name]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text, errors="surrogateescape")
    if name == "a marker" and text == '"text"':
        pytest.skip("what a marker of others says is nothing to us")
    with pytest.raises(FormatError, match=str(tmp_path)):
        read(str(tmp_path))


def test_json_of_a_header(tmp_path: Path) -> None:
    content = DEEP.encode()
    (tmp_path / "t").write_bytes(len(content).to_bytes(8, "little") + content)
    with storage.open_input(str(tmp_path / "t")) as stream, pytest.raises(FormatError, match="too deep"):
        SafetensorsFile(stream, "t")


@pytest.mark.parametrize("name", ["n" * 300, "é" * 120, "a\0b", "a\nb"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    relations = [{"name": "any\n/name", "lhs": name, "rhs": name}]
    graph = GRAPH | {"output": "o", "entities": {name: {"num_partitions": 1}}, "relations": relations}
    with pytest.raises(ConfigError, match=r"entities\..*\n?.*\nrelations\[0\]\.lhs"):
        config.from_mapping(graph)


@pytest.mark.parametrize("path", ["a\0b", "n" * 300, "hdfs://h:1/" + "n" * 300, "/n" * 3000])
def test_a_path_that_cannot_be_one(path: str) -> None:
    for action in (storage.exists, storage.read_bytes, storage.make_dir, storage.list_dir):
        with pytest.raises(PathError) as found:
            action(path)
        assert found.value.exit_code == 2


def test_a_current_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    for action in (storage.absolute, storage.exists, graphmill.open):
        with pytest.raises(PathError, match=r"^x.*: the current folder is gone; change to another"):
            action("x")
    assert not storage.exists(str(tmp_path))
    with pytest.raises(PathError, match="the current folder is gone"), connect("local", ClusterConfig()):
        pytest.fail("workers, and MKL, would end in the middle")


def test_files_and_folders_in_the_place_of_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for action in (storage.make_dir, lambda uri: storage.write_text(f"{uri}/x", ""), storage.list_dir):
        with pytest.raises(PathError):
            action(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(PathError, match="expected a file, found a folder"):
        config.load(str(tmp_path))


def test_commands_end_with_2(tmp_path: Path, submit: Submit) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    write_conf(tmp_path)
    for setting in ("output=file", "output=file/below", r'output="a\0b"', "output=" + "n" * 300):
        said = submit("etl.py", "--conf", "c.yaml", f"--set={setting}")
        assert (said.code, said.out, "defect" in said.err) == (2, "", False), said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "file", "t.csv"]
    assert submit("n" * 300 + ".py").code == 2
