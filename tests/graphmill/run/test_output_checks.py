"""Folders that a run may write: without tables, and without files of other programs."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from etl.tables.files import table_roots
from graphmill import config, storage
from graphmill.cli.stages import ETL, EVALUATE, REMAP, STAGES, TRAIN
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError, PathError
from graphmill.run import lock, output_checks
from graphmill.run.job import Stage
from tests.commands import Submit
from tests.graphmill.smallest import GRAPH, etl_of, write_conf

ALL = STAGES[:4]
HEX = "0123456789ab"
STORES = ("s3://bucket/x", "gs://bucket/x", "gopher://host/x")
PLACES = ("output", "entity_path", "embedding_path")
NO_PLACE = "put outputs on HDFS|no file system is known"


def settings(output: str, paths: Any = ("tables/day.csv",), **more: Any) -> Config:
    etl = etl_of(*paths) | more.pop("etl", {})
    return config.from_mapping({**GRAPH, "output": output, "etl": etl, **more})


def check_outputs(config: Config, stages: Sequence[Stage]) -> None:
    output_checks.check_outputs(config, stages, table_roots(config))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables" / "part=1").mkdir(parents=True)
    (tmp_path / "tables" / "day.csv").write_text("x,y\n1,2\n")
    (tmp_path / "tables" / "part=1" / "day.csv").write_text("x,y\n1,2\n")
    (tmp_path / "link").symlink_to("tables")
    return tmp_path


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("output", "paths"),
    [
        ("tables", ["tables/day.csv"]),
        ("tables", ["tables"]),
        ("tables", ["tables/part=*/day.csv"]),
        ("tables/part=1", ["tables/part=1/d?y.csv"]),
        (".", ["tables/day.csv"]),
        ("link", ["tables/day.csv"]),
        ("tables", ["link/day.csv"]),
        ("file:///", ["tables"]),
    ],
)
def test_an_output_over_tables_is_refused(folder: Path, output: str, paths: list[str]) -> None:
    before = tree(folder)
    for stages in (ALL, [REMAP]):
        with pytest.raises(ConfigError, match="output: a table is read from"):
            check_outputs(settings(output, paths), stages)
    assert tree(folder) == before


@pytest.mark.parametrize("key", ["checkpoint_path", "embedding_path", "quarantine"])
def test_other_folders_over_tables_are_refused(folder: Path, key: str) -> None:
    own = {"etl": {"on_bad_row": "quarantine", "quarantine_path": "tables"}} if key == "quarantine" else None
    chosen = settings("out", ["tables/day.csv"], **(own or {key: "tables"}))
    with pytest.raises(ConfigError, match="a table is read from"):
        check_outputs(chosen, ALL)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("output", ["tables/out", "tables/part=1/out", "tables-of-mine", "out"])
def test_an_output_beside_or_below_tables_is_accepted(folder: Path, output: str) -> None:
    for path in ("tables", "tables/*.csv", "tables/part=*/*.csv"):
        check_outputs(settings(output, [path]), ALL)


@pytest.mark.parametrize(("key", "place"), [*zip(PLACES, STORES, strict=True)])
def test_an_output_that_no_stage_can_write_is_refused(folder, submit, key, place):
    """Also that of the last stage, before the first one starts; no service is asked."""
    write_conf(folder, "day.csv", input="tables")
    before = tree(folder)
    words = ["pipeline.py", "--conf=c.yaml", f"--set={key}={place}"]
    for more in ([], ["--dry-run"]):
        said = submit(*words, *more)
        assert re.search(NO_PLACE, said.err)
        assert said.code == 2
    assert tree(folder) == before


def test_a_plan_tells_that_the_output_cannot_be_made(folder: Path, submit: Submit) -> None:
    """Every folder stays as it was."""
    write_conf(folder, "day.csv", input="tables")
    before = tree(folder)
    for key, place in ((key, place) for key in PLACES for place in ("/proc/none/out", "c.yaml/out")):
        said = submit("pipeline.py", "--conf=c.yaml", f"--set={key}={place}", "--dry-run")
        assert said.code == 2, said
        assert re.search(f"{place}[^:]*: this output cannot be made: ", said.err)
    assert submit("pipeline.py", "--conf=c.yaml", "--set=output=tables/new/out", "--dry-run").code == 0
    assert tree(folder) == before


@pytest.mark.hdfs
def test_an_output_on_hdfs_that_cannot_be_made(hdfs_uri: str) -> None:
    storage.write_text(f"{hdfs_uri}/file", "")
    output_checks.check_writable([f"{hdfs_uri}/new/out"])
    with pytest.raises(PathError, match="/file/out: this output cannot be made: "):
        output_checks.check_writable([f"{hdfs_uri}/file/out"])
    assert [storage.name(entry.uri) for entry in storage.list_dir(hdfs_uri, hidden=True)] == ["file"]


def test_a_result_that_no_command_can_write_is_refused(tmp_path: Path) -> None:
    for place in STORES:
        with pytest.raises(PathError, match=NO_PLACE):
            output_checks.check_result_folder(place, "x", "x")
        with pytest.raises(PathError, match=NO_PLACE), lock.held(whole=[place]):
            pass


def test_hdfs_by_any_name() -> None:
    assert storage.contains("hdfs:///x/", "hdfs://ns/x//t.csv")
    assert storage.contains("hdfs://ns/x/y/..", "hdfs:///x/t.csv")
    assert storage.contains("hdfs://ns/", "hdfs://ns/x")
    assert not storage.contains("hdfs://ns/x", "hdfs://other/x/t.csv")
    assert not storage.contains("hdfs://ns/x", "hdfs://ns/xy/t.csv")
    assert not storage.contains("/x", "hdfs://ns/x/t.csv")


def fill(folder: Path, paths: str, text: str = "") -> None:
    """Make files below a folder."""
    folder.mkdir(exist_ok=True)
    for path in paths.split():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


FOREIGN = {
    "notes": "notes.txt",
    "hidden": ".bashrc",
    "own names among others": "edges/train/roads.h5 entities/people.txt thesis.tex",
    "another program's embeddings": "embeddings/model.safetensors",
    "another program's checkpoint": "checkpoint/config.json checkpoint/pytorch_model.bin",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_folders_with_other_files_are_refused(folder: Path, name: str) -> None:
    fill(folder / "out", FOREIGN[name], "mine")
    before = tree(folder)
    with pytest.raises(ConfigError, match="choose another folder, or move that away"):
        check_outputs(settings("out"), ALL)
    assert tree(folder) == before


OURS = {
    "nothing": "",
    "a run that was killed before it wrote run.json": f"""
        .graphmill.lock .graphmill.lock.after-0123456789abcdef .run.json.tmp-{HEX}""",
    "the run's configuration": "conf.yaml config.yml",
    "a killed ETL": f".entities.tmp-{HEX}/x .etl-work-{HEX}.tmp-{HEX}/y .edges.old-{HEX}/z",
    "entities and edges that PBG wrote": """
        entities/entity_count_a_0.txt entities/dynamic_rel_count.txt entities/entity_names_a_0.json
        edges/train/edges_0_0.h5""",
    "notes beside what a stage wrote": "entities/entity_count_a_0.txt notes.txt conf.yaml",
    "PBG's checkpoint": """
        checkpoint/config.json checkpoint/checkpoint_version.txt checkpoint/model.v5.h5
        checkpoint/embeddings_a_0.v5.h5 checkpoint/training_stats.json checkpoint/notes.txt""",
    "PBG's checkpoint before its first version": "checkpoint/config.json",
    "what ETL leaves there without output": "checkpoint/report.html checkpoint/.graphmill.lock",
    "a legacy checkpoint": "checkpoint/CHECKPOINT_VERSION checkpoint/a_1.pt.3 checkpoint/METADATA_1.pt.3",
    "a finished run": """
        _SUCCESS report.html entities/_SUCCESS entities/entity_index/manifest.json
        entities/entity_count_a_0.txt edges/train/edges_0_0.h5 edges/train/_SUCCESS checkpoint/graphmill.json
        checkpoint.stale/config.json checkpoint.stale-2/config.json checkpoint.adopted/init/_SUCCESS
        tensorboard/events embeddings/a/part-00000.parquet embeddings/_relations.parquet embeddings/_SUCCESS
        embeddings/_checksums.xxh128 embeddings.faiss/a.json quarantine/part-00000-00000.parquet
        entities/raw_id_mappings/a/x""",
}


@pytest.mark.parametrize("name", OURS)
def test_outputs_of_earlier_runs_are_accepted(folder: Path, name: str) -> None:
    fill(folder / "out", OURS[name])
    check_outputs(settings("out"), ALL[1:])
    for place in ("entities", "edges/train"):
        own = [path.removeprefix(f"{place}/") for path in OURS[name].split() if path.startswith(f"{place}/")]
        if own:
            storage.write_checksums(f"out/{place}/checksums.xxh128", dict.fromkeys(own, "0" * 32))
    check_outputs(settings("out"), ALL)


def test_other_files_beside_our_run_json_are_accepted(folder: Path) -> None:
    fill(folder / "out", "notes.txt")
    (folder / "out" / "run.json").write_text('{"stages": {}}')
    check_outputs(settings("out"), ALL)
    for content in ('{"dbt": 1}', '{"config": {}}', "{}"):
        (folder / "out" / "run.json").write_text(content)
        with pytest.raises(FormatError, match="found another's file"):
            check_outputs(settings("out"), ALL)


def test_a_stage_looks_at_its_own_places_only(folder: Path) -> None:
    fill(folder / "out", "checkpoint/pytorch_model.bin")
    for stage in (ETL, EVALUATE, REMAP):
        check_outputs(settings("out", checkpoint_path="out/checkpoint"), [stage])
    with pytest.raises(ConfigError, match="pytorch_model"):
        check_outputs(settings("out"), [TRAIN])


def test_refused_commands_write_nothing(folder: Path, submit: Submit) -> None:
    write_conf(folder, "day.csv", input="tables")
    fill(folder / "etc", "passwd")
    os.utime(folder / "etc", (1, 1))
    before = tree(folder)
    for job, output in (("etl.py", "."), ("train.py", "tables"), ("pipeline.py", "etc"), ("remap.py", "etc")):
        said = submit(job, "--conf", "c.yaml", f"--set=output={output}")
        assert (said.code, said.out) == (2, "")
        assert "another folder" in said.err or "of their own" in said.err
    assert tree(folder) == before
    assert (folder / "etc").stat().st_mtime == 1, "something was there for a while"
