"""Commands on a finished run: they replace their own results alone, as a whole, and go on after a kill."""

import signal
from collections.abc import Callable
from pathlib import Path

import distributed
import pytest

from graphmill import storage
from graphmill.cli import main
from tests.commands import Command, on_cluster
from tests.finished import copy_of
from tests.forked import Forks, Kill
from tests.remap.commands import COMMANDS, OTHERWISE, RECORDS, words, write_asked
from tests.remap.graph import download, snapshot, upload


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and what the commands read beside it, which no test changes for good."""
    folder = tmp_path_factory.mktemp("asked") / "root"
    write_asked(folder)
    return folder


@pytest.fixture
def result(root: Path, client: distributed.Client, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The result of a command with these options, made once, by workers in processes of their own."""

    def made(command: str, more: str = "") -> Path:
        folder = root.parent / f"{command}{more.replace(' ', '')}"
        if not folder.exists():
            with monkeypatch.context() as patch:
                far = on_cluster(client, patch, main.command)
                assert far(*words(command, root, folder, more)) == 0
        return folder

    return made


def results_of(folder: Path) -> dict[str, bytes]:
    """All files but those with times, or with the places of the inputs."""
    return {name: content for name, content in snapshot(folder).items() if Path(name).name not in RECORDS}


def left_in(folder: Path) -> list[str]:
    """The files that unfinished commands left there."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".out")]


# Where a command dies: right after the file of this number has got its name, with files that stay.
WRITTEN = [
    ("predict", "part-*.json", 0, 1),
    ("predict", "part-*.parquet", 0, 0),
    ("pairs", "part-*.parquet", 0, 0),
    ("pairs", "part-*.json", 0, 1),
    ("ids", "part-*.json", 0, 1),
    ("ids", "part-*.parquet", 0, 0),
    ("lists", "centers.h5", 0, 0),
    ("lists", "block-*.h5", 0, 0),
    ("lists", "part-*.h5", 0, 0),
    ("lists", "places-*.h5", 0, 0),
    ("lists", "part-*.parquet", 0, 0),
    ("lists", "part-*.json", 0, 1),
    ("export", "user-*.json", 0, 1),
    ("export", "user-*.json", 2, 3),
    ("features", "part-*.parquet", 0, 0),
    ("features", "done/part-0000?.json", 1, 2),
    ("fold-in", "edges-*.parquet", 0, 0),
    ("fold-in", "sorted-*.arrow", 0, 0),
    ("fold-in", "part-*.parquet", 0, 0),
    ("fold-in", "solved-*.json", 0, 1),
    ("remap", "part-*.parquet", 2, 0),
    ("remap", "part-*.parquet", 0, 0),
    ("remap", "part-*.parquet", 4, 0),
]
# Before the old folder goes aside, and before the new one has its name.
COMMITS = [(command, pattern, 0, 0) for command in COMMANDS for pattern in (".out.old-*", "out")]


@pytest.mark.parametrize(("command", "pattern", "number", "num_kept"), [*WRITTEN, *COMMITS])
def test_a_killed_command_goes_on(
    tmp_path: Path,
    root: Path,
    result: Callable[..., Path],
    graphmill_command: Command,
    forked: Forks,
    command: str,
    pattern: str,
    number: int,
    num_kept: int,
) -> None:
    """The earlier result stays, finished pieces are not written again, and the bytes are those of one run."""
    out = tmp_path / "out"
    copy_of(result(command, OTHERWISE[command]), out)
    before = results_of(out)
    asked = words(command, root, out)
    ended = forked("graphmill", *asked, kill=Kill(number, pattern, is_after="out" not in pattern))
    assert ended.code == -signal.SIGKILL, ended.stderr
    aside = [results_of(path) for path in tmp_path.glob(".out.old-*")]
    assert (results_of(out), aside) == (({}, [before]) if pattern == "out" else (before, []))
    inodes = {path.stat().st_ino for each in tmp_path.glob(".out.*") for path in each.rglob("*.*")}
    assert graphmill_command(*asked) == 0
    assert results_of(out) == results_of(result(command))
    assert len([path for path in out.rglob("part-*") if path.stat().st_ino in inodes]) >= num_kept
    assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["entities/entity_index/user/part-00000.parquet", "checkpoint/{user}"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_leaves_the_earlier_result(
    tmp_path: Path,
    root: Path,
    result: Callable[..., Path],
    graphmill_command: Command,
    command: str,
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    copy_of(result(command, OTHERWISE[command]), out)
    before = results_of(tmp_path)
    path = root / "run" / damage.format(user="embeddings_user_2.v1.h5")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        assert graphmill_command(*words(command, root, out)) == 2
    finally:
        path.write_bytes(whole)
    assert path.name in capsys.readouterr().err
    assert results_of(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_folders_of_others_are_not_replaced(
    tmp_path: Path, root: Path, graphmill_command: Command, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine/thesis.tex", "table/part-00000.parquet", "spark/part-00000.parquet", "file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "spark/_SUCCESS").touch()
    before = snapshot(tmp_path), snapshot(root / "run/checkpoint")
    wrong = {
        tmp_path / "mine": "thesis.tex, and is replaced as a whole",
        tmp_path / "table": "holds files, and no _",
        tmp_path / "spark": "holds files, and no _",
        tmp_path / "file": "expected a folder, or none yet, found the file",
        root / "run": "and is replaced as a whole",
    }
    for out, message in wrong.items():
        assert graphmill_command(*words(command, root, out)) == 2
        assert message in capsys.readouterr().err
    assert (snapshot(tmp_path), snapshot(root / "run/checkpoint")) == before


HALF = "--precision float16"
FORMATS = ("npy", "arrow", "faiss", f"word2vec {HALF}", f"tensorboard-projector {HALF}")


@pytest.mark.hdfs
@pytest.mark.slow
def test_on_hdfs_the_same_bytes(
    tmp_path: Path, root: Path, result: Callable[..., Path], graphmill_command: Command, hdfs_uri: str
) -> None:
    upload(root, hdfs_uri)
    there, here = hdfs_uri.encode(), str(root).encode()
    exports = [("export", f"--format {each}") for each in FORMATS]
    for number, (command, more) in enumerate([*((each, "") for each in COMMANDS), *exports]):
        # The first replaces what it wrote with other options, and an export in one format that in another.
        if number == 0:
            upload(result(command, OTHERWISE[command]), f"{hdfs_uri}/out-{command}")
        assert graphmill_command(*words(command, hdfs_uri, f"{hdfs_uri}/out-{command}", more)) == 0
        download(f"{hdfs_uri}/out-{command}", tmp_path / f"{number}")
        found = results_of(tmp_path / f"{number}")
        found = {name: content.replace(there, here) for name, content in found.items()}
        assert found == results_of(result(command, more)), (command, more)
    assert [uri for uri in storage.list_hidden(hdfs_uri) if ".out" in uri] == []
