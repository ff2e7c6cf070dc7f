"""run.json, fingerprints, and the rule that skips finished stages."""

import json
import os
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from graphmill import config, storage
from graphmill.cli.session import session
from graphmill.config import Config
from graphmill.errors import ConfigError, DiskFullError, FormatError, LockedError
from graphmill.library.run import Run
from graphmill.run import fingerprints, lock, record
from graphmill.run.job import Stage
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import fs
from tests.graphmill.smallest import GRAPH
from tests.processes import full_disk

KEYS = st.text("abc", min_size=1, max_size=2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


class Counting:
    """A stage that writes one file, or only adds figures to run.json, and counts how often it ran."""

    __name__, runs, fails = "counting", 0, False

    def __init__(self, writes: bool = True) -> None:
        self.writes = writes

    def check(self, config: Config) -> None:
        if config.dimension == 7:
            raise ConfigError("dimension: not 7")

    def run(self, config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
        self.runs += 1
        if self.fails:
            raise RuntimeError("broken")
        if self.writes:
            storage.write_text(storage.join(config.entity_path, "x"), "x")
        return {"rows": 7}

    def fingerprint(self, config: Config) -> dict[str, Any]:
        return {"dimension": config.dimension, "inputs": fingerprints.describe_inputs([config.input or ""])}

    def output_uris(self, config: Config) -> list[str]:
        return [config.entity_path] if self.writes else []

    written_uris = output_uris

    def check_outputs(self, config: Config) -> None:
        """Refuse nothing."""


def settings_at(folder: Path, dimension: int = 4) -> Config:
    places = {"output": str(folder / "out"), "input": str(folder / "in")}
    return config.from_mapping({**GRAPH, **places, "dimension": dimension})


def run(stage: Counting, folder: Path, client: Client, dimension: int = 4, resume: bool = True) -> Any:
    settings = settings_at(folder, dimension)
    run_record = record.RunRecord(settings.record_uri(""), settings)
    entry = record.run_stage("etl", stage, settings, client, run_record, resume=resume)
    run_record.finish("done")
    return entry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "edges.csv").write_text("a,b")
    return tmp_path


def test_a_finished_stage_is_skipped_until_something_changes(folder, near_client, caplog):
    caplog.set_level("INFO", "graphmill")
    stage, settings = Counting(), settings_at(folder)
    assert not record.is_finished("etl", stage, settings)
    first = run(stage, folder, near_client)
    assert record.is_finished("etl", stage, settings)
    assert not record.is_finished("etl", stage, settings_at(folder, dimension=5))
    content = json.loads((folder / "out" / "run.json").read_text())
    assert (content["status"], content["config"]["dimension"]) == ("done", 4)
    assert content["versions"].keys() == {"graphmill", *record.LIBRARIES}
    assert content["stages"]["etl"] == first
    assert (first["rows"], first["seconds"] >= 0) == (7, True)
    skipped = run(stage, folder, near_client).pop("skipped")
    assert run(stage, folder, near_client) == first | {"skipped": skipped}
    assert re.fullmatch(r"unchanged since (\d{4}-\d\d-\d\d )?\d\d:\d\d", skipped)
    assert f"etl: skipped, {skipped}; input files by size and time of change" in caplog.text
    assert stage.runs == 1
    run(stage, folder, near_client, dimension=5)
    assert stage.runs == 2
    assert "dimension: 4 -> 5" in caplog.text
    (folder / "in" / "edges.csv").write_text("a,b,c")
    run(stage, folder, near_client, dimension=5)
    assert stage.runs == 3
    assert "/in/edges.csv is another file" in caplog.text
    storage.delete(str(folder / "out" / "entities"))
    run(stage, folder, near_client, dimension=5)
    assert stage.runs == 4
    run(stage, folder, near_client, dimension=5, resume=False)
    assert stage.runs == 5
    storage.write_marker(settings.entity_path, {"made": "by another run"})
    assert not record.is_finished("etl", stage, settings_at(folder, dimension=5))


def test_a_run_that_is_evaluated_once_more_stays_finished(folder: Path, near_client: Client) -> None:
    """The next of daily runs goes on from it; a stage that makes files, or is part of a run, hides it."""
    out = str(folder / "out")
    for dimension, writes, resume, stays in (
        (4, False, False, True),
        (5, False, True, False),
        (6, True, False, False),
    ):
        storage.write_marker(out, {"date": "2026-11-20"})
        run(Counting(writes), folder, near_client, dimension, resume)
        assert (storage.read_marker(out) is not None) == stays


def test_a_failed_stage_is_recorded_and_runs_again(folder: Path, near_client: Client) -> None:
    stage = Counting()
    run(stage, folder, near_client)
    stage.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        run(stage, folder, near_client, resume=False)
    entry = json.loads((folder / "out" / "run.json").read_text())["stages"]["etl"]
    assert entry["status"] == "failed"
    assert "broken" in entry["error"]
    assert storage.read_marker(str(folder / "out" / "entities")) is None
    stage.fails = False
    assert run(stage, folder, near_client)["rows"] == 7
    assert stage.runs == 3


def test_a_stage_whose_marker_cannot_be_written_has_failed(folder, near_client, monkeypatch):
    def refuse(uri: str, fingerprint: object) -> None:
        raise DiskFullError(f"{uri}: no room")

    monkeypatch.setattr(storage, "write_marker", refuse)
    with pytest.raises(DiskFullError):
        run(Counting(), folder, near_client)
    entry = json.loads((folder / "out" / "run.json").read_text())["stages"]["etl"]
    assert (entry["status"], "no room" in entry["error"]) == ("failed", True)


@pytest.mark.usefixtures("graphmill_command")
def test_a_stage_and_run_json_on_a_full_disk(folder, monkeypatch, caplog):
    settings, disk = settings_at(folder), ExitStack()

    def run(*_: object) -> dict[str, Any]:
        disk.enter_context(full_disk(10))
        storage.write_text(str(folder / "vectors"), "long enough")
        return {}

    stage = Stage("etl", Counting())
    monkeypatch.setattr(stage.job, "run", run)
    error = pytest.raises(DiskFullError, match="vectors: cannot write")
    with disk, error, session(settings, None, [stage], is_long=True) as run_stage:
        run_stage(stage, resume=False)
    assert "run.json: cannot write" in caplog.text
    assert "what is there does not tell how this run has ended" in caplog.text
    assert json.loads((folder / "out" / "run.json").read_text())["status"] == "running"
    run_record = Run(str(folder / "out"))
    assert (run_record.status, run_record.stages["etl"]["status"]) == ("died", "died")


@pytest.mark.usefixtures("graphmill_command")
@pytest.mark.parametrize("keeps_work", [True, False])
def test_ctrl_c_says_how_to_go_on_where_work_is_kept(folder: Path, keeps_work: bool) -> None:
    stage = Stage("etl", Counting(), keeps_work=keeps_work)
    with (
        pytest.raises(KeyboardInterrupt) as stopped,
        session(settings_at(folder), None, [stage], is_long=True),
    ):
        raise KeyboardInterrupt
    assert hasattr(stopped.value, "__notes__") == keeps_work


def test_a_run_without_a_last_word_has_died_once_its_lock_is_free(folder: Path) -> None:
    settings = settings_at(folder)
    uri = settings.record_uri("")
    with lock.held(str(folder / "out")) as claim:
        record.RunRecord(uri, settings, claim).write_stage("etl", {"status": "running"})
        assert record.read_run(uri)["status"] == "running"
    left = record.read_run(uri)
    assert (left["status"], left["stages"]["etl"]["status"]) == ("died", "died")
    again = record.RunRecord(uri, settings)
    again.finish("done")  # of another stage
    assert record.read_run(uri)["stages"]["etl"]["status"] == "died"


def test_a_refused_stage_and_a_run_without_its_lock_change_nothing(folder: Path, near_client: Client) -> None:
    run(Counting(), folder, near_client)
    before = (folder / "out" / "run.json").read_bytes()
    with pytest.raises(ConfigError):
        run(Counting(), folder, near_client, dimension=7, resume=False)
    settings, lost = settings_at(folder), Claim({str(folder / "out" / ".graphmill.lock"): "out"}, "ours")
    run_record = record.RunRecord(settings.record_uri(""), settings, lost)
    with pytest.raises(LockedError):
        record.run_stage("etl", Counting(), settings, near_client, run_record, resume=False)
    assert (folder / "out" / "run.json").read_bytes() == before
    assert storage.read_marker(str(folder / "out" / "entities")) is not None


def evaluated(settings: Config, mrr: float) -> dict[str, Any]:
    """Record an evaluation as `run_stage` does, and return run.json."""
    written = record.RunRecord(settings.record_uri(""), settings)
    written.write_stage("evaluate", {"status": "running", "started": "now"})
    figures = {"split": "test", "filtered": True, "metrics": {"mrr": mrr, "num_edges": 9}}
    written.write_stage("evaluate", {"status": "done", "seconds": 1, "fingerprint": {}} | figures)
    written.finish("done")
    content: dict[str, Any] = record.read_record(written.uri) or {}
    return content


def test_run_json_keeps_the_metrics_of_the_evaluation_before(tmp_path: Path) -> None:
    """The metrics of the run that training started from, if this is the first one here."""
    settings = settings_at(tmp_path / "monday")
    assert evaluated(settings, 0.1)["before"] == {}
    content = evaluated(settings, 0.2)
    assert content["before"] == {"split": "test", "filtered": True, "metrics": {"mrr": 0.1, "num_edges": 9}}
    assert content["metrics"]["mrr"] == 0.2
    untouched = record.RunRecord(settings.record_uri(""), settings)
    assert untouched.content["before"]["metrics"]["mrr"] == 0.1
    changes = {"init_path": settings.checkpoint_path}
    tuesday = settings_at(tmp_path / "tuesday").model_copy(update=changes)
    assert evaluated(tuesday, 0.4)["before"]["metrics"]["mrr"] == 0.2
    assert evaluated(tuesday, 0.5)["before"]["metrics"]["mrr"] == 0.4
    Path(settings.record_uri("")).write_text("[")
    wednesday = settings_at(tmp_path / "wednesday").model_copy(update=changes)
    assert evaluated(wednesday, 0.6)["before"] == {}  # a damaged file of another run stops nothing


@pytest.mark.parametrize("moved", [False, True])
def test_the_run_of_a_checkpoint(tmp_path: Path, moved: bool) -> None:
    """Folders of two checkpoints without a run are their own; that of a run's checkpoint is the run's."""
    config = settings_at(tmp_path / "run")
    checkpoint = Path(config.checkpoint_path)
    assert record.run_of(str(checkpoint)) == str(checkpoint)
    content = {"config": config.model_dump(mode="json"), "stages": {}}
    storage.write_text(config.record_uri(""), json.dumps(content))
    if moved:
        checkpoint = Path(config.record_uri("")).parent.rename(tmp_path / "there") / "checkpoint"
    assert record.run_of(f"{checkpoint}") == str(checkpoint.parent)
    assert record.run_of(f"{checkpoint}.stale-1") == f"{checkpoint}.stale-1"
    storage.write_text(str(checkpoint.parent / "run.json"), "{")
    assert record.run_of(str(checkpoint)) == str(checkpoint)


def test_of_pbg_s_input_other_files_are_no_inputs(tmp_path: Path) -> None:
    """A checkpoint may lie beside it."""
    (tmp_path / "entity_count_user_0.txt").write_text("3")
    before = fingerprints.describe_inputs([str(tmp_path)])
    (tmp_path / "embeddings_user_0.v1.h5").write_text("")
    assert fingerprints.describe_inputs([str(tmp_path)]) == before


def test_a_finished_folder_is_told_by_its_content_and_what_made_it_not_by_its_place(tmp_path: Path) -> None:
    config, (here, there) = settings_at(tmp_path), (str(tmp_path / copy / "edges") for copy in ("x", "y"))
    for folder in (here, there):
        storage.write_text(f"{folder}/x", folder)
        storage.write_marker(folder, {"made": "from"})
        storage.write_checksums(f"{folder}/checksums.xxh128", {"x": "0" * 32})
    (one, two) = fingerprints.describe_inputs([here, there])
    assert one == two
    storage.write_marker(there, {"made": "differently"})
    assert fingerprints.describe_inputs([there]) != [one]
    storage.write_checksums(f"{here}/checksums.xxh128", {"x": "1" * 32})
    (other,) = fingerprints.describe_inputs([here])
    assert len(fingerprints.differences(config, {"inputs": [one]}, {"inputs": [other]}, None)) == 1
    earlier = {key: other[key] for key in ("name", "made_from")}  # of an earlier release
    assert fingerprints.differences(config, {"inputs": [earlier]}, {"inputs": [one]}, None) == []
    vectors = {"vectors": "0a"}, {"vectors": "0b"}
    assert fingerprints.differences(config, *vectors, None) == ["the checkpoint has other vectors"]
    # an earlier release did not record it
    assert fingerprints.differences(config, {}, vectors[1], None) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"stages": ',
        '{"stages": []}',
        '{"stages": {"etl": 5}}',
        '{"stages": {}, "config": 3}',
    ],
)
def test_a_damaged_run_json_is_not_overwritten(folder: Path, text: str) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "run.json").write_text(text)
    for read in (Run, lambda out: record.RunRecord(f"{out}/run.json", settings_at(folder))):
        with pytest.raises(FormatError, match=r"run\.json: .*; move it away"):
            read(str(folder / "out"))
    assert (folder / "out" / "run.json").read_text() == text


def test_what_another_run_deletes_while_it_is_read_is_not_there(folder, monkeypatch):
    """A date that is retired loses its marker and its run.json while others look at all dates."""
    open_input = fs.open_input

    def deleted_at_last(uri: str) -> Any:
        storage.delete(uri)
        return open_input(uri)

    storage.write_marker(str(folder), {})
    storage.write_text(str(folder / "run.json"), "{}")
    monkeypatch.setattr(fs, "open_input", deleted_at_last)
    assert storage.read_marker(str(folder)) is None
    assert record.read_record(str(folder / "run.json")) is None


@pytest.mark.parametrize(("ago_s", "age"), [(-7200, "newer"), (7200, "another one, and older")])
def test_a_finished_folder_is_told_by_its_age(folder, near_client, caplog, ago_s, age):
    """Nobody can tell two hashes apart."""
    stage, edges = Counting(), folder / "out" / "edges" / "in"
    stage.fingerprint = lambda config: {"inputs": fingerprints.describe_inputs([str(edges)])}
    storage.write_marker(str(edges), {"made": "first"})
    run(stage, folder, near_client)
    storage.write_marker(str(edges), {"made": "then"})
    os.utime(edges / "_SUCCESS", (time.time() - ago_s,) * 2)
    caplog.set_level("INFO", "graphmill")
    run(stage, folder, near_client)
    told = rf"since this changed: in is {age} \(.*\d\d:\d\d\) than what .* \(\d\d:\d\d\)$"
    assert re.search(told, caplog.text, re.M)
    assert "made_from" not in caplog.text


@pytest.mark.parametrize("inputs", [["x"], [{"uri": "x", "files": 3}], None])
def test_a_fingerprint_that_somebody_has_changed(folder: Path, near_client: Client, inputs: Any) -> None:
    stage = Counting()
    run(stage, folder, near_client)
    uri = str(folder / "out" / "run.json")
    content = storage.read_json(uri)
    content["stages"]["etl"] |= {"finished": "soon"}
    content["stages"]["etl"]["fingerprint"]["inputs"] = inputs
    storage.write_text(uri, json.dumps(content))
    run(stage, folder, near_client)
    assert stage.runs == 2


@given(JSON, JSON)
def test_changes_are_empty_only_for_equal_fingerprints(one: Any, two: Any) -> None:
    assert fingerprints.changes(one, one) == []
    assert bool(fingerprints.changes({"x": one}, {"x": two})) == (one != two)
