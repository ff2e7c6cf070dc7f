"""Nothing damaged is published, nothing of two models is joined: one wrong bit, or other ids, are refused."""

import fnmatch
import json
import random
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from distributed import Client

import graphmill
from etl import job as etl_job
from graphmill import convert, storage
from graphmill.ask.evaluate import job as evaluate_job
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.checkpoints.finite import first_not_finite
from graphmill.config import Config, from_mapping
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError, FormatError, LockedError, NotFoundError
from graphmill.formats import entity_index
from graphmill.run import lock, record
from remap import job as remap_job
from tests.commands import Command
from tests.contents import contents
from tests.etl.graphs import config_of, write_parquet
from tests.finished import copy_of
from tests.forked import Forks
from tests.train.graphs import USUAL
from tests.waiting import wait_until
from train import job as train_job
from train.run.claim import claim_checkpoint
from train.run.training_run import TrainingRun
from train.tables.warm_start import WarmStart

NUM_EDGES = 300


def configured(root: Path, **changes: Any) -> Config:
    table = {"path": root / "raw.parquet", "relation_column": "r"}
    graph: Any = {"entities": {"node": 2}, "dynamic": True, "operator": "diagonal"}
    top = USUAL | {"global_emb": False, "num_epochs": 1, "checkpoint_preservation_interval": 1} | changes
    return config_of(root, [table], **graph, top=top, entity_names=True, holdout={"test": 0.2})


@pytest.fixture(scope="module")
def finished(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, trained for an epoch and remapped."""
    root = tmp_path_factory.mktemp("finished")
    ids = np.random.default_rng(0).integers(0, 60, (2, NUM_EDGES))
    columns = {key: [f"n{n}" for n in each] for key, each in zip("lt", ids, strict=True)}
    write_parquet(root / "raw.parquet", **columns, r=["ab"[n % 2] for n in ids[0]])
    config = configured(root)
    etl_job.run(config, near_client)
    for folder in etl_job.output_uris(config):  # by which a copy is the same input
        storage.write_marker(folder, etl_job.fingerprint(config))
    train_job.run(config, near_client)
    remap_job.run(config, near_client)
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return copy_of(finished, tmp_path / "run")


def do(what: str, root: Path, client: Client) -> None:
    """Run a command on the run."""
    checkpoint = str(root / "checkpoint")
    match what:
        case "remap":
            remap_job.run(configured(root), client)
        case "remap by names":
            (root / "entities/entity_index/manifest.json").unlink()
            remap_job.run(configured(root), client)
        case "convert":
            convert.convert(checkpoint, str(root / "converted"), "recis", shard_num=2)
        case "train":
            train_job.run(configured(root, num_epochs=2), client)
        case "warm start":
            warm = {"init_path": checkpoint, "checkpoint_path": str(root / "second")}
            train_job.run(configured(root, **warm), client)
        case "evaluate":
            evaluate_job.run(configured(root), client)
        case "etl":
            config = configured(root, output=str(root / "next"))
            previous = {"previous_entity_path": str(root / "entities")}
            section = config.section(EtlConfig).model_copy(update=previous)
            etl_job.run(config.with_section(section), client)


VECTORS = ("checkpoint/embeddings_*", "checkpoint/model*")
INDEX = ("entities/entity_count_*", "entities/entity_index/*/*", "entities/entity_index/manifest.json")
EDGES = ("edges/train/edges_*", "edges/train/num_edges.json", "entities/dynamic_rel_count.txt")
NAMES = "entities/dynamic_rel_names.json"
CONFIG = "checkpoint/config.json"

READ: dict[str, tuple[str, ...]] = {
    "remap": (*VECTORS, *INDEX),
    "remap by names": ("entities/entity_names_*",),
    "convert": (*VECTORS, CONFIG),
    "train": (*VECTORS, *EDGES, "entities/entity_count_*"),
    "warm start": (*VECTORS, CONFIG),
    "evaluate": (*VECTORS, CONFIG, "edges/*/edges_*", "entities/dynamic_rel_count.txt", NAMES),
    "etl": (*INDEX, NAMES),
}


def listed(root: Path) -> list[str]:
    """The files that have a checksum, but for those of preserved epochs."""
    found: list[str] = []
    for folder in ("entities", "edges/train", "edges/test"):
        manifest = str(root / folder / storage.CHECKSUMS)
        found += [f"{folder}/{name}" for name in storage.read_checksums(manifest)]
    manifest = str(root / "checkpoint/checksums.v1.xxh128")
    return sorted(found + [f"checkpoint/{name}" for name in storage.read_checksums(manifest)])


def test_every_file_has_a_checksum(finished: Path) -> None:
    extra = {"_SUCCESS", "checkpoint_version.txt", "graphmill.json", "training_stats.json"}
    for folder in ("entities", "edges/train", "edges/test", "checkpoint", "checkpoint/epoch_1"):
        manifests = list((finished / folder).glob("checksums.*"))
        assert len(manifests) == 1
        known = storage.read_checksums(str(manifests[0]))
        there = {
            str(path.relative_to(finished / folder))
            for path in (finished / folder).rglob("*")
            if path.is_file() and path != manifests[0] and path.name not in extra
        }
        assert {name for name in there if not name.startswith("epoch_1/")} == set(known)
    patterns = [pattern for each in READ.values() for pattern in each]
    patterns += ["edges/test/num_edges.json"]  # read only where a plan needs the edges of the split
    patterns += ["edges/*/origins.json"]  # read by etl with previous_edge_path: tests/etl/run/test_delta.py
    assert all(any(fnmatch.fnmatch(name, each) for each in patterns) for name in listed(finished))


@pytest.mark.skipif(shutil.which("xxhsum") is None, reason="no xxhsum")
def test_xxhsum_compares_them(finished: Path) -> None:
    for manifest in finished.rglob("checksums.*"):
        command = ["xxhsum", "-c", manifest.name]
        subprocess.run(command, cwd=manifest.parent, check=True, capture_output=True)


def committed(root: Path) -> dict[str, bytes]:
    """What others read: embeddings, and the version that counts."""
    found = {name: each for name, each in contents(root).items() if name.startswith("embeddings/")}
    version = (root / "checkpoint/checkpoint_version.txt").read_bytes()
    return found | {"version": version}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "pattern"), [(what, pattern) for what, patterns in READ.items() for pattern in patterns]
)
def test_a_wrong_bit_is_refused_by_file(what: str, pattern: str, root: Path, near_client: Client) -> None:
    draw = random.Random(f"{what} {pattern}")
    name = draw.choice([each for each in listed(root) if fnmatch.fnmatch(each, pattern)])
    content = bytearray((root / name).read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    (root / name).write_bytes(content)
    before = committed(root)
    with pytest.raises(FormatError) as caught:
        do(what, root, near_client)
    assert caught.value.exit_code == 2
    assert committed(root) == before
    assert not any((root / each).exists() for each in ("converted", "next/entities", "next/edges/train"))
    assert not (root / "second/checkpoint_version.txt").exists()
    assert Path(name).name in str(caught.value)


def test_the_error_says_what_to_do(root: Path, near_client: Client) -> None:
    path = root / "checkpoint/embeddings_node_1.v1.h5"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    expected = (
        r"_1\.v1\.h5: expected the checksum [0-9a-f]{32}, as .*checksums\.v1.* found [0-9a-f]{32}.*epoch"
    )
    with pytest.raises(FormatError, match=expected):
        do("remap", root, near_client)
    (root / "checkpoint/checksums.v1.xxh128").write_text("not one\n")
    with pytest.raises(FormatError, match=r"checksums\.v1\.xxh128: line 1: expected a checksum"):
        do("remap", root, near_client)


def test_preserved_epochs_have_checksums_of_their_own(root: Path, near_client: Client) -> None:
    """Training goes on, with another configuration, beside what was preserved before."""
    train_job.run(configured(root, num_epochs=2), near_client)
    assert [each.name for each in (root / "checkpoint").glob("checksums.*")] == ["checksums.v2.xxh128"]
    for epoch in ("epoch_1", "epoch_2"):
        convert.convert(str(root / "checkpoint" / epoch), str(root / f"converted_{epoch}"), "pbg")
    path = root / "checkpoint/epoch_1/model.v1.h5"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"epoch_1/model\.v1\.h5: expected the checksum"):
        convert.convert(str(root / "checkpoint/epoch_1"), str(root / "again"), "pbg")


@pytest.mark.slow
def test_a_version_of_another_program_needs_no_checksums(root: Path, near_client: Client) -> None:
    """As PyTorch-BigGraph does: it rewrites config.json, and its versions have no checksums."""
    checkpoint = root / "checkpoint"
    for path in checkpoint.glob("*.v1.h5"):
        with h5py.File(path, "a") as hdf5:
            hdf5.attrs["iteration/num_epochs"] = 9
        path.rename(checkpoint / path.name.replace(".v1.", ".v2."))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"num_epochs": 9}))
    (checkpoint / "checkpoint_version.txt").write_text("2")
    convert.convert(str(checkpoint), str(root / "converted"), "pbg")
    evaluate_job.run(configured(root), near_client)
    train_job.run(configured(root, num_epochs=3), near_client)
    assert [each.name for each in checkpoint.glob("checksums.*")] == ["checksums.v3.xxh128"]


def test_a_configuration_that_was_written_by_half(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between config.json and its checksum leaves it without one."""

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    write_text = storage.write_text
    for name, last, left in (
        ("write_checksums", kill, {"num_epochs": 1}),
        ("write_text", lambda *each: (write_text(*each), kill()), {"other": 1}),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(storage, name, last)
            pbg.write_config(str(root / "checkpoint"), {"other": 1})
        assert left.items() <= pbg.read_config(str(root / "checkpoint")).items()


NAN = float("nan")


def spoil(root: Path, partition: int, row: int, value: float = NAN) -> str:
    """Put a wrong number into a vector, as a foreign checkpoint may have it; the raw id of the row."""
    for manifest in (root / "checkpoint").rglob("checksums.*"):
        manifest.unlink()
    with h5py.File(root / f"checkpoint/embeddings_node_{partition}.v1.h5", "a") as hdf5:
        hdf5["embeddings"][row, 2] = value
    return str(entity_index.read_part(str(root / "entities"), "node", partition)[row].as_py())


@pytest.mark.parametrize(("value", "changes"), [(NAN, {}), (float("-inf"), {"output_format": "csv"})])
def test_a_vector_that_is_not_finite_is_named(root, near_client, value, changes):
    raw_id = spoil(root, 1, 3, value)
    before = committed(root)
    message = rf"'node', partition 1, row 3: the vector of the raw id '{raw_id}' is not finite"
    with pytest.raises(FormatError, match=message):
        remap_job.run(configured(root, remap=changes | {"batch_rows": 2}), near_client)
    assert committed(root) == before
    remap_job.run(configured(root, remap=changes | {"allow_non_finite": True}), near_client)


@pytest.mark.parametrize(
    ("source", "target"),
    [("pbg", "graphstorm"), ("pbg-legacy", "pbg"), ("recis", "graphstorm"), ("graphstorm", "pbg")],
)
def test_convert_names_what_is_not_finite(root: Path, near_client: Client, source: Any, target: Any) -> None:
    raw_id = spoil(root, 1, 3)
    there, entities = str(root / "checkpoint"), str(root / "entities")
    if source != "pbg":
        there = str(root / "source")
        convert.convert(str(root / "checkpoint"), there, source, allow_non_finite=True)
    path = None if source.startswith("pbg") else entities
    with pytest.raises(FormatError, match=r"'node', partition 1: row 3: expected finite numbers, found nan"):
        convert.convert(there, str(root / "converted"), target, entity_path=path)
    assert not (root / "converted").exists()
    convert.convert(there, str(root / "converted"), target, entity_path=path, allow_non_finite=True)
    if source in ("pbg-legacy", "recis"):
        with pytest.raises(FormatError, match=rf"partition 1, row 3: the vector of the raw id '{raw_id}'"):
            remap_job.run(configured(root, checkpoint_path=there), near_client)


def test_training_and_evaluation_refuse_vectors_that_are_not_finite(root: Path, near_client: Client) -> None:
    spoil(root, 1, 3)
    message = r"_1\.v1\.h5: 'node', partition 1: row 3: expected finite numbers"
    for what in ("train", "warm start", "evaluate"):
        with pytest.raises(FormatError, match=message):
            do(what, root, near_client)


@pytest.mark.parametrize("sums", [False, True])
def test_relations_that_are_not_finite_are_named(root: Path, near_client: Client, sums: bool) -> None:
    """A number of the second relation's parameters, or of their Adagrad, becomes infinite."""
    path = str(root / "checkpoint")
    for manifest in (root / "checkpoint").rglob("checksums.*"):
        manifest.unlink()
    parameters, state, iteration = pbg.read_model(path, 1)
    keys = [key for key in parameters if "_operators." in key]
    if sums:
        state["state"][0]["sum"][1, 1] = torch.inf
    else:
        parameters[keys[0]][1, 1] = torch.inf
    pbg.write_model(path, 1, parameters, state, pbg.read_config(path), iteration)
    message = r"[lr]hs_operators\.0\.diagonals': row 1: expected finite numbers, found inf"
    for what in ("train", "warm start", "convert", *(() if sums else ("evaluate",))):
        with pytest.raises(FormatError, match=message):
            do(what, root, near_client)
    if not sums:
        with pytest.raises(FormatError, match=message):
            remap_job.run(configured(root, remap={"relations": True}), near_client)
        both = {"relations": True, "allow_non_finite": True}
        remap_job.run(configured(root, remap=both), near_client)


def test_optimizer_sums_that_are_not_finite_are_refused(root: Path, near_client: Client) -> None:
    path = str(root / "checkpoint")
    rows, state = pbg.read_embeddings(path, "node", 1, 1)
    state["state"][0]["sum"][4] = torch.nan
    iteration = pbg.read_model_iteration(path, 1)
    assert iteration is not None
    (root / "checkpoint/checksums.v1.xxh128").unlink()
    pbg.write_embeddings(path, "node", 1, 1, rows, state, {}, iteration)
    for what in ("train", "convert"):
        with pytest.raises(FormatError, match=r"partition 1: optimizer sums: row 4: expected finite numbers"):
            do(what, root, near_client)
    do("remap", root, near_client)


def test_large_finite_rows_count_as_finite() -> None:
    rows = np.full((3, 2), 3e38, np.float32)
    assert first_not_finite(rows) is None
    assert first_not_finite(np.full((3, 2), 6e4, np.float16)) is None
    rows[2, 1] = np.nan
    assert first_not_finite(rows) == 2


NUM_IDS = 30


def write_tables(folder: Path, swapped: str = "") -> None:
    """A ring of ids; with `swapped`, that id in the place of n7."""
    names = [swapped if swapped and n == 7 else f"n{n}" for n in range(NUM_IDS)]
    rows = [(names[n], names[(n + step) % NUM_IDS]) for n in range(NUM_IDS) for step in (1, 2, 3)]
    for split, own in (("train", rows[:-10]), ("test", rows[-10:])):
        columns = {"l": [lhs for lhs, _ in own], "r": ["next"] * len(own), "t": [rhs for _, rhs in own]}
        write_parquet(folder / f"{split}.parquet", **columns)


def settings(home: Path, **changes: Any) -> dict[str, Any]:
    columns = {"lhs": "l", "relation_column": "r", "rhs": "t"}
    tables = [columns | {"path": f"{home}/raw/{own}.parquet", "split": own} for own in ("train", "test")]
    graph = {
        "output": str(home / "run"),
        "entities": {"node": {"num_partitions": 1}},
        "relations": [{"name": "any", "lhs": "node", "rhs": "node", "operator": "diagonal"}],
        "dynamic_relations": True,
        "global_emb": False,
        "etl": {"tables": tables},
        "train": {"commit_interval_s": 0},  # short epochs have no version of their own otherwise
    }
    return USUAL | graph | changes


def conf(home: Path, **changes: Any) -> str:
    path = home / "run.yaml"
    path.write_text(json.dumps(settings(home, **changes)))
    return str(path)


def config_at(home: Path) -> Config:
    return from_mapping(settings(home))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    """A finished run in `run`, its tables in `raw`; a copy of both is in the folder `kept` beside it."""
    made = tmp_path_factory.mktemp("made") / "home"
    write_tables(made / "raw")
    forked("graphmill", "pipeline", "--conf", conf(made))
    copy_of(made, made.with_name("kept"))
    return made


@pytest.fixture
def home(made: Path) -> Path:
    """The run as it was made, in its old place, as paths are absolute."""
    shutil.rmtree(made)
    return copy_of(made.with_name("kept"), made)


def ask(command: Command, home: Path) -> dict[str, int]:
    """Exit codes of commands that join vectors with ids, from the run alone."""
    run = home / "run"
    return {
        "remap": command("remap", run),
        "predict": command("predict", run, "--relation", "next", "--to", home / "answers"),
        "export": command("export", run, "--to", home / "export"),
        "neighbors": command("neighbors", run, "--id", "n1", "--relation", "next"),
    }


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def published(home: Path) -> bytes:
    return (home / "run/embeddings/node/part-00000.parquet").read_bytes()


@pytest.mark.slow
def test_ids_of_other_tables_get_no_vectors(home, graphmill_command, capsys):
    """One of as many ids is another: only the content tells. The old ids stay beside."""
    before, ids = published(home), entity_index.read_part(str(home / "run/entities"), "node", 0)
    write_tables(home / "raw", "stranger")
    assert graphmill_command("etl", "--conf", conf(home)) == 0
    assert set(ask(graphmill_command, home).values()) == {2}
    assert graphmill_command("evaluate", home / "run") == 2
    kept = home / "run/entities.stale-1"
    said = told(capsys)
    assert said.count("was trained with other ids or relations than") == 5
    assert f"Train again, or set entity_path to {kept}" in said
    assert published(home) == before
    with pytest.raises(FormatError, match="other ids"):
        graphmill.open(str(home / "run")).fold_in([("new", "next", "n1")])
    with pytest.raises(FormatError, match=r"run etl with etl\.previous_entity_path"):
        WarmStart(config_at(home), f"{home}/run/checkpoint")  # with these ids in the place of others
    assert entity_index.read_part(str(kept), "node", 0).equals(ids)
    old = ("--set", f"entity_path={kept}", "--set", f"embedding_path={home}/old")
    assert graphmill_command("remap", home / "run", *old) == 0
    assert (home / "old/node/part-00000.parquet").read_bytes() == before
    # trained anew, checkpoint and ids stay together
    assert graphmill_command("etl", "--conf", conf(home)) == 0
    assert graphmill_command("train", "--conf", conf(home)) == 0
    assert graphmill_command("remap", home / "run") == 0
    assert published(home) != before
    stale_ones = {each.name for each in (home / "run").glob("*.stale-*")}
    assert stale_ones == {"checkpoint.stale-1", "entities.stale-1"}
    stale = {"checkpoint_path": f"{home}/run/checkpoint.stale-1", "entity_path": str(kept)}
    trained = TrainedRun.with_ids(from_mapping(settings(home, **stale)))
    assert trained.version == 2  # a finished model, as before


@pytest.mark.slow
def test_the_same_ids_from_other_files_are_the_same(home: Path, graphmill_command: Command) -> None:
    """And another number of partitions is no end: etl writes other buckets first."""
    write_tables(home / "raw")  # another time of change
    assert graphmill_command("etl", "--conf", conf(home)) == 0
    assert TrainedRun.with_ids(config_at(home)).version == 2
    assert not list((home / "run").glob("*.stale-*"))
    changed = conf(home, entities={"node": {"num_partitions": 2}})
    assert graphmill_command("pipeline", "--conf", changed) == 0
    assert len(list((home / "run/embeddings/node").iterdir())) == 2


@pytest.mark.slow
def test_a_command_for_a_run_leaves_no_settings_to_later_ones(home: Path, graphmill_command: Command) -> None:
    """But those of a model that it trains anew: the run's settings are those of its model."""
    run = home / "run"

    def recorded() -> Any:
        return json.loads((run / "run.json").read_text())["config"]

    before = recorded()
    assert graphmill_command("evaluate", run, "--split", "train", "--num-workers", 7) == 0
    assert graphmill_command("remap", run, "--set", f"embedding_path={home}/other", "--queue", "q") == 0
    assert recorded() == before
    assert graphmill_command("train", run, "--set", "num_epochs=3", "--num-workers", 7) == 0
    assert recorded() == before | {"num_epochs": 3}

    # a run that fails before it has trained leaves the model of before, and its settings
    shutil.copytree(run / "checkpoint", home / "narrow")
    wider = ("--conf", conf(home, dimension=USUAL["dimension"] + 4, init_path=str(home / "narrow")))
    assert graphmill_command("pipeline", *wider) == 2
    (home / "raw/test.parquet").write_text("no table")
    assert graphmill_command("pipeline", *wider, "--set", "init_path=null") == 2
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert recorded() == before | {"num_epochs": 3}
    assert set(ask(graphmill_command, home).values()) == {0}


def test_a_run_that_has_lost_its_lock_does_not_say_that_it_is_finished(home, graphmill_command, monkeypatch):
    output, run_stage = home / "run", record.run_stage

    def robbed(name: str, *rest: Any, **settings: Any) -> dict[str, Any]:
        entry = run_stage(name, *rest, **settings)
        if name == "remap":
            (output / lock.NAME).unlink()
            (output / "_SUCCESS").unlink(missing_ok=True)
        return entry

    monkeypatch.setattr(record, "run_stage", robbed)
    assert graphmill_command("pipeline", output) == LockedError.exit_code
    assert not (output / "_SUCCESS").exists()


def kill_in_training(home: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Train anew with another seed, up to an error after the first epoch."""
    config = from_mapping(settings(home, seed=5, **changes))
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
def test_an_unfinished_model_answers_only_by_name(home, graphmill_command, capsys, monkeypatch):
    kill_in_training(home, monkeypatch)
    assert set(ask(graphmill_command, home).values()) == {2}
    assert told(capsys).count("training has not ended: version 1 is an unfinished model") == 4
    with pytest.raises(ConfigError, match="has not ended"):
        graphmill.open(str(home / "run")).fold_in([("new", "next", "n1")])
    named = ("--set", "remap.checkpoint_version=1")
    # the embeddings are those of the finished model, and no parameters of another one are asked about them
    assert graphmill_command("neighbors", home / "run", "--id", "n1", "--relation", "next", *named) == 2
    assert "has the vectors of another model than version 1" in told(capsys)
    assert graphmill_command("remap", home / "run", *named) == 0
    assert graphmill_command("neighbors", home / "run", "--id", "n1", "--relation", "next", *named) == 0


HOLD = """
import sys, time
from graphmill.run import lock
with lock.held(whole=[sys.argv[1]]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_run_that_trains_now_answers_later(home, graphmill_command, monkeypatch, forked):
    config = config_at(home)
    training = forked.start("python", "-c", HOLD, config.checkpoint_path)
    wait_until(lambda: training.read("stdout") == "held\n")
    assert TrainedRun.with_ids(config).version == 2  # a finished version answers at any time
    kill_in_training(home, monkeypatch)
    assert graphmill_command("predict", home / "run", "--relation", "next", "--to", home / "to") == 75
    told = r"no finished version yet; .* has it since .*, and trains; try again later"
    for remove, name in (
        (Path.unlink, "checkpoint_version.txt"),  # as before the first epoch
        (shutil.rmtree, "."),  # as while it is moved aside
    ):
        remove(Path(config.checkpoint_path, name))
        with pytest.raises(LockedError, match=told):
            TrainedRun.with_ids(config)
    training.send(signal.SIGTERM)
    training.wait(-signal.SIGTERM)
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        TrainedRun.with_ids(config)


def test_what_is_replaced_meanwhile_is_not_mixed(home: Path) -> None:
    config = config_at(home)
    trained = TrainedRun.with_ids(config)
    uri = Path(config.checkpoint_path, "checksums.v2.xxh128")
    uri.write_text(re.sub(r"(?m)^\w", lambda digit: "1" if digit[0] == "0" else "0", uri.read_text()))
    with pytest.raises(LockedError, match="another run has replaced vectors or ids"):
        trained.open_checkpoint(allow_non_finite=True)


@pytest.mark.slow
def test_edges_of_other_ids_are_not_trained(home: Path, graphmill_command: Command) -> None:
    """A kill leaves them so that comes while etl's folders take their places."""
    shutil.copytree(home / "run/edges", home / "edges")
    write_tables(home / "raw", "stranger")
    assert graphmill_command("etl", "--conf", conf(home)) == 0
    shutil.rmtree(home / "run/edges")
    (home / "edges").rename(home / "run/edges")
    before = storage.read_bytes(f"{home}/run/checkpoint/graphmill.json")
    with pytest.raises(FormatError, match=r"edges of other ids than those in .*; run etl again"):
        claim_checkpoint(config_at(home))
    assert storage.read_bytes(f"{home}/run/checkpoint/graphmill.json") == before
