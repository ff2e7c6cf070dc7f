"""Ids, vectors, parameters and published embeddings are of one model: others are refused, not joined."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import graphmill
from graphmill import storage
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.errors import ConfigError, FormatError, LockedError, NotFoundError
from graphmill.formats import entity_index
from graphmill.run import lock, record
from tests.commands import Command
from tests.etl.graphs import write_parquet
from tests.train.graphs import USUAL
from tests.waiting import wait_until
from train import job as train_job
from train.run.claim import claim_checkpoint
from train.run.training_run import TrainingRun
from train.tables.warm_start import WarmStart

NUM_IDS = 30


def write_tables(folder: Path, swapped: str = "") -> None:
    """A ring of ids; with `swapped`, that id in the place of n7."""
    names = [swapped if swapped and n == 7 else f"n{n}" for n in range(NUM_IDS)]
    rows = [(names[n], names[(n + step) % NUM_IDS]) for n in range(NUM_IDS) for step in (1, 2, 3)]
    for split, own in (("train", rows[:-10]), ("test", rows[-10:])):
        columns = {"l": [lhs for lhs, _ in own], "r": ["next"] * len(own), "t": [rhs for _, rhs in own]}
        write_parquet(folder / f"{split}.parquet", **columns)


def settings(root: Path, **changes: Any) -> dict[str, Any]:
    columns = {"lhs": "l", "relation_column": "r", "rhs": "t"}
    tables = [columns | {"path": f"{root}/raw/{own}.parquet", "split": own} for own in ("train", "test")]
    graph = {
        "output": str(root / "run"),
        "entities": {"node": {"num_partitions": 1}},
        "relations": [{"name": "any", "lhs": "node", "rhs": "node", "operator": "diagonal"}],
        "dynamic_relations": True,
        "global_emb": False,
        "etl": {"tables": tables},
        "train": {"commit_interval_s": 0},  # short epochs have no version of their own otherwise
    }
    return USUAL | graph | changes


def conf(root: Path, **changes: Any) -> str:
    path = root / "run.yaml"
    path.write_text(json.dumps(settings(root, **changes)))
    return str(path)


def config_of(root: Path) -> Config:
    return from_mapping(settings(root))


@pytest.fixture(scope="module")
def first() -> dict[str, Path]:
    """Keeps the first finished run, which the tests copy."""
    return {}


@pytest.fixture
def root(first: dict[str, Path], tmp_path_factory: Any, graphmill_command: Command) -> Path:
    """A finished run in `run`, its tables in `raw`."""
    if not first:
        made = tmp_path_factory.mktemp("made") / "root"
        write_tables(made / "raw")
        assert graphmill_command("pipeline", "--conf", conf(made)) == 0
        first["kept"] = made.parent / "kept"
        first["made"] = made
        shutil.copytree(made, first["kept"])
    shutil.rmtree(first["made"])
    shutil.copytree(first["kept"], first["made"])  # in its old place, as paths are absolute
    return first["made"]


def ask(command: Command, root: Path) -> dict[str, int]:
    """Exit codes of commands that join vectors with ids, from the run alone."""
    run = root / "run"
    return {
        "remap": command("remap", run),
        "predict": command("predict", run, "--relation", "next", "--to", root / "answers"),
        "export": command("export", run, "--to", root / "export"),
        "neighbors": command("neighbors", run, "--id", "n1", "--relation", "next"),
    }


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def published(root: Path) -> bytes:
    return (root / "run/embeddings/node/part-00000.parquet").read_bytes()


@pytest.mark.slow
def test_ids_of_other_tables_get_no_vectors(root, graphmill_command, capsys):
    """As many ids as before, one of them another: only the content tells. The old ids stay beside."""
    before, ids = published(root), entity_index.read_part(str(root / "run/entities"), "node", 0)
    write_tables(root / "raw", "stranger")
    assert graphmill_command("etl", "--conf", conf(root)) == 0
    assert set(ask(graphmill_command, root).values()) == {2}
    assert graphmill_command("evaluate", root / "run") == 2
    kept = root / "run/entities.stale-1"
    said = told(capsys)
    assert said.count("was trained with other ids or relations than") == 5
    assert f"Train again, or set entity_path to {kept}" in said
    assert published(root) == before
    with pytest.raises(FormatError, match="other ids"):
        graphmill.open(str(root / "run")).fold_in([("new", "next", "n1")])
    with pytest.raises(FormatError, match=r"run etl with etl\.previous_entity_path"):
        WarmStart(config_of(root), f"{root}/run/checkpoint")  # with these ids in the place of others
    assert entity_index.read_part(str(kept), "node", 0).equals(ids)
    old = ("--set", f"entity_path={kept}", "--set", f"embedding_path={root}/old")
    assert graphmill_command("remap", root / "run", *old) == 0
    assert (root / "old/node/part-00000.parquet").read_bytes() == before
    # trained anew, checkpoint and ids stay together
    assert graphmill_command("etl", "--conf", conf(root)) == 0
    assert graphmill_command("train", "--conf", conf(root)) == 0
    assert graphmill_command("remap", root / "run") == 0
    assert published(root) != before
    stale_ones = {each.name for each in (root / "run").glob("*.stale-*")}
    assert stale_ones == {"checkpoint.stale-1", "entities.stale-1"}
    stale = {"checkpoint_path": f"{root}/run/checkpoint.stale-1", "entity_path": str(kept)}
    trained = TrainedRun.with_ids(from_mapping(settings(root, **stale)))
    assert trained.version == 2  # a finished model, as before


@pytest.mark.slow
def test_the_same_ids_from_other_files_are_the_same(root: Path, graphmill_command: Command) -> None:
    """And another number of partitions is no end: etl writes other buckets first."""
    write_tables(root / "raw")  # another time of change
    assert graphmill_command("etl", "--conf", conf(root)) == 0
    assert TrainedRun.with_ids(config_of(root)).version == 2
    assert not list((root / "run").glob("*.stale-*"))
    changed = conf(root, entities={"node": {"num_partitions": 2}})
    assert graphmill_command("pipeline", "--conf", changed) == 0
    assert len(list((root / "run/embeddings/node").iterdir())) == 2


@pytest.mark.slow
def test_a_command_for_a_run_leaves_no_settings_to_later_ones(root: Path, graphmill_command: Command) -> None:
    """But those of a model that it trains anew: the run's settings are those of its model."""
    run = root / "run"

    def recorded() -> Any:
        return json.loads((run / "run.json").read_text())["config"]

    before = recorded()
    assert graphmill_command("evaluate", run, "--split", "train", "--num-workers", 7) == 0
    assert graphmill_command("remap", run, "--set", f"embedding_path={root}/other", "--queue", "q") == 0
    assert recorded() == before
    assert graphmill_command("train", run, "--set", "num_epochs=3", "--num-workers", 7) == 0
    assert recorded() == before | {"num_epochs": 3}

    # a run that fails before it has trained leaves the model of before, and its settings
    shutil.copytree(run / "checkpoint", root / "narrow")
    wider = ("--conf", conf(root, dimension=USUAL["dimension"] + 4, init_path=str(root / "narrow")))
    assert graphmill_command("pipeline", *wider) == 2
    (root / "raw/test.parquet").write_text("no table")
    assert graphmill_command("pipeline", *wider, "--set", "init_path=null") == 2
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert recorded() == before | {"num_epochs": 3}
    assert set(ask(graphmill_command, root).values()) == {0}


def test_a_run_that_has_lost_its_lock_does_not_say_that_it_is_finished(root, graphmill_command, monkeypatch):
    output, run_stage = root / "run", record.run_stage

    def robbed(name: str, *rest: Any, **settings: Any) -> dict[str, Any]:
        entry = run_stage(name, *rest, **settings)
        if name == "remap":
            (output / lock.NAME).unlink()
            (output / "_SUCCESS").unlink(missing_ok=True)
        return entry

    monkeypatch.setattr(record, "run_stage", robbed)
    assert graphmill_command("pipeline", output) == LockedError.exit_code
    assert not (output / "_SUCCESS").exists()


def kill_in_training(root: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Train anew with another seed, up to an error after the first epoch."""
    config = from_mapping(settings(root, seed=5, **changes))
    commit = TrainingRun.commit

    def fail(run: TrainingRun, version: int, *rest: Any) -> None:
        commit(run, version, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "commit", fail)
        storage.delete_marker(config.checkpoint_path)  # as run_stage does
        claim_checkpoint(config)
        with pytest.raises(KeyboardInterrupt):
            train_job.train(config)
    assert pbg.read_version(config.checkpoint_path) == 1


@pytest.mark.slow
def test_an_unfinished_model_answers_only_by_name(root, graphmill_command, capsys, monkeypatch):
    kill_in_training(root, monkeypatch)
    assert set(ask(graphmill_command, root).values()) == {2}
    assert told(capsys).count("training has not ended: version 1 is an unfinished model") == 4
    with pytest.raises(ConfigError, match="has not ended"):
        graphmill.open(str(root / "run")).fold_in([("new", "next", "n1")])
    named = ("--set", "remap.checkpoint_version=1")
    # the embeddings are those of the finished model, and no parameters of another one are asked about them
    assert graphmill_command("neighbors", root / "run", "--id", "n1", "--relation", "next", *named) == 2
    assert "has the vectors of another model than version 1" in told(capsys)
    assert graphmill_command("remap", root / "run", *named) == 0
    assert graphmill_command("neighbors", root / "run", "--id", "n1", "--relation", "next", *named) == 0


HOLD = """
import sys, time
from graphmill.run import lock
with lock.held(whole=[sys.argv[1]]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_run_that_trains_now_answers_later(root, graphmill_command, monkeypatch, forked):
    config = config_of(root)
    training = forked.start("python", "-c", HOLD, config.checkpoint_path)
    wait_until(lambda: training.read("stdout") == "held\n")
    assert TrainedRun.with_ids(config).version == 2  # a finished version answers at any time
    kill_in_training(root, monkeypatch)
    assert graphmill_command("predict", root / "run", "--relation", "next", "--to", root / "to") == 75
    Path(config.checkpoint_path, "checkpoint_version.txt").unlink()  # as before the first epoch
    with pytest.raises(
        LockedError, match=r"no finished version yet; .* has it since .*, and trains; try again later"
    ):
        TrainedRun.with_ids(config)
    shutil.rmtree(config.checkpoint_path)  # as while it is moved aside
    with pytest.raises(
        LockedError, match=r"no finished version yet; .* has it since .*, and trains; try again later"
    ):
        TrainedRun.with_ids(config)
    training.send(signal.SIGTERM)
    training.wait(-signal.SIGTERM)
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        TrainedRun.with_ids(config)


def test_what_is_replaced_meanwhile_is_not_mixed(root: Path) -> None:
    config = config_of(root)
    trained = TrainedRun.with_ids(config)
    uri = Path(config.checkpoint_path, "checksums.v2.xxh128")
    uri.write_text(re.sub(r"(?m)^\w", lambda digit: "1" if digit[0] == "0" else "0", uri.read_text()))
    with pytest.raises(LockedError, match="another run has replaced vectors or ids"):
        trained.open_checkpoint(allow_non_finite=True)


@pytest.mark.slow
def test_edges_of_other_ids_are_not_trained(root: Path, graphmill_command: Command) -> None:
    """As a kill leaves them that comes while etl's folders take their places."""
    shutil.copytree(root / "run/edges", root / "edges")
    write_tables(root / "raw", "stranger")
    assert graphmill_command("etl", "--conf", conf(root)) == 0
    shutil.rmtree(root / "run/edges")
    (root / "edges").rename(root / "run/edges")
    before = storage.read_bytes(f"{root}/run/checkpoint/graphmill.json")
    with pytest.raises(FormatError, match=r"edges of other ids than those in .*; run etl again"):
        claim_checkpoint(config_of(root))
    assert storage.read_bytes(f"{root}/run/checkpoint/graphmill.json") == before
