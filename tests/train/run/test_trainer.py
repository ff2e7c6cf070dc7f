"""The trainer from input files to checkpoint: what it writes, resumes and refuses, where it stops early."""

import json
import shutil
import threading
import weakref
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest
import torch

from graphmill import config as configuration
from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError, DivergenceError, FormatError, NotFoundError, TrainingError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket
from tests import DATA
from tests.contents import contents
from tests.train.graphs import (
    assert_checksums,
    changed,
    differing,
    embeddings,
    make_config,
    node_graph,
    random_edges,
    random_triples,
    saved,
    write_edges,
    write_graph,
)
from train import job
from train.run import bucket as bucket_training
from train.run import run_metrics
from train.run.run_metrics import Curves
from train.run.trainer import Trainer
from train.run.validation import Validation

RELATIONS = [
    {"name": "likes", "lhs": "user", "rhs": "item", "operator": "translation", "weight": 2.0},
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"},
    {"name": "lives", "lhs": "user", "rhs": "city", "operator": "none"},
]
COUNTS = {"user": 41, "item": 30, "city": 5}
TYPES = {"user": {"num_partitions": 3}, "item": {"num_partitions": 3}, "city": {"num_partitions": 1}}


def mixed(root, **more):
    """Three types, one of them not partitioned, and relations between them."""
    return make_config(root, **({"entities": TYPES, "relations": RELATIONS} | more))


def write_mixed(config, rng, counts=COUNTS):
    weight = rng.random(300, dtype=np.float32) + 0.5
    write_graph(config, counts, random_edges(config, counts, rng, 300), weight)


def test_checkpoint_of_a_heterogeneous_graph(tmp_path, rng):
    config = mixed(tmp_path, eval_fraction=0.1, checkpoint_preservation_interval=1)
    write_mixed(config, rng)
    figures = job.train(config)
    checkpoint = config.checkpoint_path
    assert figures["version"] == pbg.read_version(checkpoint) == 2
    assert figures["num_edges"] + 2 * 6 * 2 < 2 * 300  # a tenth is held out
    expected = {"config.json", "checkpoint_version.txt", "model.v2.h5", "training_stats.json"}
    expected |= {"checksums.v2.xxh128"}
    expected |= {f"embeddings_{name}_{part}.v2.h5" for name in ("user", "item") for part in range(3)}
    expected |= {"embeddings_city_0.v2.h5"}
    assert {name for name in contents(checkpoint) if "/" not in name} == expected
    for epoch in (1, 2):
        assert pbg.read_version(f"{checkpoint}/epoch_{epoch}") == epoch
    for name, count in COUNTS.items():
        rows = embeddings(config, name, count)
        assert torch.isfinite(rows).all()
        assert rows.abs().sum(1).min() > 0
    lines = pbg.read_stats(checkpoint)
    assert [line["index"] for line in lines] == list(range(6))
    assert {(line["lhs_partition"], line["rhs_partition"]) for line in lines[:3]} == set(
        combinations(range(3), 2)
    )
    for line in lines:
        assert set(line["stats"]["metrics"]) == {"loss", "reg", "violators_lhs", "violators_rhs"}
        for key in ("eval_stats_before", "eval_stats_after"):
            metrics = line[key]["metrics"]
            assert 0 < metrics["mrr"] <= 1
            assert 0 <= metrics["r1"] <= metrics["r10"] <= metrics["r50"] <= 1
            assert 0 <= metrics["auc"] <= 1
    assert json.loads(contents(checkpoint)["config.json"]) == config.pbg()


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bytes_and_figures_of_all_epochs(tmp_path, monkeypatch):
    """Old epochs have no buckets; TensorBoard's own reader reads the curves of both runs.

    Only one of them has the thread that reads ahead.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(run_metrics, "MAX_BUCKETS", 7)
    settings = {"num_epochs": 3, "num_edge_chunks": 2, "eval_fraction": 0.1, "max_norm": 1.0}
    settings |= {"bucket_order": "random"}
    whole, parts = (
        mixed(tmp_path / name, train={"tensorboard": True, "prefetch": reads_ahead}, **settings)
        for name, reads_ahead in (("whole", False), ("parts", True))
    )
    for config in (whole, parts):
        write_mixed(config, np.random.default_rng(3))
    job.train(whole)
    job.train(changed(parts, num_epochs=1))
    figures = json.loads(json.dumps(job.train(parts)))
    assert saved(whole)["version"] == 3 * 2
    assert not differing(saved(whole), saved(parts))
    first, *later = figures["epochs"]
    assert set(first) == {"epoch", "edges", "loss", "reg", "mrr"}  # of an earlier run
    assert [len(entry.get("buckets", ())) for entry in figures["epochs"]] == [0, 0, 6]
    lines = pbg.read_stats(parts.checkpoint_path)
    for number, entry in enumerate(later, 2):
        mine = [line for line in lines if line["epoch_idx"] == number - 1]
        assert entry["epoch"] == number
        assert entry["edges"] == sum(line["stats"]["count"] for line in mine)
        losses = [line["stats"]["metrics"]["loss"] * line["stats"]["count"] for line in mine]
        assert entry["loss"] == pytest.approx(sum(losses) / entry["edges"])
        assert 0 < entry["mrr"] <= 1
        assert entry["partitions_read"] > 0
        assert entry["partitions_written"] >= 7
        assert entry["seconds"] > entry["swap_wait_s"] >= 0
        assert entry["peak_bytes"] > 1 << 26
    assert [(each["lhs"], each["rhs"]) for each in later[-1]["buckets"]] == [
        (line["lhs_partition"], line["rhs_partition"]) for line in mine
    ]
    assert figures["loss"] == later[-1]["loss"]
    assert figures["num_edges"] == sum(entry["edges"] for entry in later)

    curves = EventAccumulator(str(tmp_path / "parts/tensorboard"))
    curves.Reload()
    for name in ("loss", "mrr"):
        curve = [(event.step, event.value) for event in curves.Scalars(f"epoch/{name}")]
        assert curve == [(epoch["epoch"], pytest.approx(epoch[name])) for epoch in figures["epochs"]]
    buckets = curves.Scalars("bucket/loss")
    assert len(buckets) == 18
    expected = [each["loss"] for each in later[-1]["buckets"]]
    assert [event.value for event in buckets[-6:]] == pytest.approx(expected)
    assert buckets[-1].step == sum(epoch["edges"] for epoch in figures["epochs"])


def test_several_edge_paths_are_visited_in_order(tmp_path, rng):
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    config = make_config(tmp_path, edge_paths=paths, num_edge_chunks=2)
    for path, num in zip(paths, (60, 30), strict=True):
        write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, num), path=path)
    figures = job.train(config)
    assert figures["num_edges"] == 2 * (60 + 30)
    visited = [
        (line["epoch_idx"], line["edge_path_idx"], line["edge_chunk_idx"], line["stats"]["count"])
        for line in pbg.read_stats(config.checkpoint_path)
    ]
    assert visited == [(e, p, c, 30 if p == 0 else 15) for e in (0, 1) for p in (0, 1) for c in (0, 1)]


def test_empty_buckets_and_empty_partitions(tmp_path):
    config = make_config(tmp_path, entities={"node": {"num_partitions": 4}})
    write_graph(config, {"node": 2}, np.array([[0, 0, 1], [1, 0, 0]]))
    job.train(config)
    assert pbg.read_embeddings(config.checkpoint_path, "node", 3, 2)[0].shape == (0, 8)
    assert embeddings(config, "node", 2).isfinite().all()


@pytest.mark.parametrize("name", ["pbg_v1_static", "pbg_v1_dyn"])
def test_golden_checkpoint_of_pbg_is_resumed(tmp_path, name):
    for folder in ("entities", "edges", "checkpoint"):
        shutil.copytree(DATA / name / folder, tmp_path / folder)
    (tmp_path / "checkpoint").chmod(0o755)
    for file in (tmp_path / "checkpoint").iterdir():
        file.chmod(0o644)
    raw = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    before = raw["num_epochs"]
    paths = {
        "entity_path": str(tmp_path / "entities"),
        "edge_paths": [str(tmp_path / "edges")],
        "checkpoint_path": str(tmp_path / "checkpoint"),
    }
    config = configuration.from_mapping(raw | paths | {"num_epochs": before + 2})
    old = pbg.read_stats(config.checkpoint_path)
    _, state, _ = pbg.read_model(config.checkpoint_path, before)
    job.claim_checkpoint(config)
    figures = job.train(config)
    assert (figures["first_version"], figures["version"]) == (before, before + 2)
    lines = pbg.read_stats(config.checkpoint_path)
    assert lines[: len(old)] == old
    # negatives are drawn alike, own entities are masked where PBG keeps duplicates: the loss goes on falling
    last = [np.mean([line["stats"]["metrics"]["loss"] for line in each]) for each in (old[-4:], lines[-4:])]
    assert last[1] < last[0] * 1.02
    _, resumed, _ = pbg.read_model(config.checkpoint_path, before + 2)
    assert resumed["param_groups"][0].keys() == state["param_groups"][0].keys()
    for number, entry in state["state"].items():
        assert resumed["state"][number]["step"] > entry["step"]
        assert (resumed["state"][number]["sum"] >= entry["sum"]).all()


def without(name):
    return lambda root, config: (root / name).unlink()


def with_edge(*ends):
    """Another bucket 0, 0, whose last edge is wrong."""
    edges = Edges(*(np.array([0, each]) for each in ends))
    return lambda root, config: edge_buckets.write_bucket(config.edge_paths[0], Bucket(0, 0), edges)


DIVERGING = {"lr": 1e30, "comparator": "squared_l2", "loss_fn": "ranking"}
DYNAMIC = {"dynamic_relations": True, "relations": RELATIONS[:1], "global_emb": False}


@pytest.mark.parametrize(
    ("damage", "settings", "error", "message"),
    [
        (without("edges/train/edges_1_2.h5"), {}, FormatError, r"edges_1_2\.h5.* no such bucket"),
        (without("entities/entity_count_item_1.txt"), {}, NotFoundError, r"entity_count_item_1\.txt"),
        # row 13 exists among the users of partition 0, but not among its cities
        (with_edge(0, 2, 13), {}, FormatError, r"edges_0_0\.h5: .*rhs\[1\] is 13.*'city'.*'lives'"),
        (with_edge(0, 3, 0), {}, FormatError, r"rel\[1\] is 3"),
        (None, DIVERGING, DivergenceError, "not finite.*lower lr"),
        (lambda _, config: job.train(config), {"num_edge_chunks": 3}, ConfigError, "num_edge_chunks"),
        (None, {"init_path": "/nowhere"}, FormatError, "/nowhere.*init_path"),
        (None, {"num_gpus": 1, "num_epochs": 1}, ConfigError, "num_gpus"),
        (None, DYNAMIC, NotFoundError, r"dynamic_rel_count\.txt"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, rng, damage, settings, error, message):
    if "num_gpus" in settings and torch.cuda.is_available():
        pytest.skip("there is one")
    config = mixed(tmp_path)
    write_mixed(config, rng)
    if damage:
        damage(tmp_path, config)
    with pytest.raises(error, match=f"(?s){message}"):
        job.train(changed(config, **settings))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("dynamic", [False, True])
def test_gpu_trains_like_the_cpu(tmp_path, rng, dynamic):
    """Plain steps draw on the CPU, so both draw alike and differ by rounding only."""
    triples, rows = random_triples(rng, 20, 1, 20, 60), []
    for num_gpus in (0, 1):
        settings = {"num_gpus": num_gpus, "num_epochs": 1, "train": {"engine": "plain"}}
        config = make_config(tmp_path / str(num_gpus), dynamic_relations=dynamic, **settings)
        write_graph(config, {"node": 20}, triples)
        job.train(config)
        rows.append(embeddings(config, "node", 20))
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_memory_holds_the_bucket_and_what_the_next_one_adds(tmp_path, rng):
    """Tables from files that are alive at any time: two that are joined next, and one ahead of them."""
    config = node_graph(tmp_path, rng, 80, 300, num_partitions=6, num_epochs=1, bucket_order="random")
    trainer = Trainer(config)
    alive, most = weakref.WeakSet(), 0
    load = trainer.store.files.load

    def counted(*arguments):
        nonlocal most
        table = load(*arguments)
        alive.add(table)
        most = max(most, len(alive))
        return table

    trainer.store.files.load = counted
    trainer.run()
    assert 1 < most <= 3


@pytest.mark.parametrize("broken", ["load", "write", "read", "write that ends between two looks"])
def test_an_error_of_the_swap_thread_ends_training(tmp_path, rng, broken):
    config = mixed(tmp_path)
    write_mixed(config, rng)
    trainer = Trainer(config)
    name = broken.split()[0]
    owner = trainer.bucket.reader if name == "read" else trainer.store.files
    working, submit, calls = getattr(owner, name), trainer.background.submit, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise TrainingError("the third one fails")
        return working(*arguments)

    def submit_to_end_unseen(function, *arguments):
        future = submit(function, *arguments)
        done = iter([False])
        future.done = lambda: next(done, True)
        return future

    setattr(owner, name, failing)
    if name != broken:
        trainer.background.submit = submit_to_end_unseen
    with pytest.raises(TrainingError, match="the third one fails"):
        trainer.run()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("swap")]
    assert pbg.read_version(config.checkpoint_path) == 0


def test_curves_are_read_in_the_order_of_their_epochs(tmp_path):
    """TensorBoard goes by the names of the files, many of which may be of the same second."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = Curves(make_config(tmp_path))
    for number in range(1, 13):
        curves.write({"epoch": number, "loss": 1 / number, "buckets": []}, num_edges=0)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("epoch/loss")] == list(range(1, 13))


@pytest.mark.slow
def test_more_partitions_in_memory_are_read_less_often(tmp_path, rng):
    """Two and six of eight partitions."""
    triples, reads = random_triples(rng, 80, 1, 80, 300), []
    for held, visits in ((2, 8 * 7 // 2), (6, 3)):
        train = {"memory_partitions": held}
        config = make_config(tmp_path / str(held), num_partitions=8, num_epochs=1, train=train)
        write_graph(config, {"node": 80}, triples)
        (epoch,) = job.train(config)["epochs"]
        assert (len(epoch["buckets"]), epoch["edges"]) == (visits, 300)
        reads.append(epoch["partitions_read"])
    assert reads[0] > 1.5 * reads[1]


def test_learning_rates_fall_from_visit_to_visit(tmp_path, rng, monkeypatch):
    """The linear schedule goes by the edges of the run, however many visits have them."""
    config = mixed(tmp_path, num_epochs=2, train={"lr_schedule": "linear", "lr_final": 0.1})
    write_mixed(config, rng)
    trainer = Trainer(config)
    scales, lr_scale = [], bucket_training.lr_scale
    monkeypatch.setattr(
        bucket_training, "lr_scale", lambda *done: scales.append(lr_scale(*done)) or scales[-1]
    )
    trainer.run()
    assert len(scales) > 12
    assert scales == sorted(scales, reverse=True)
    assert scales[0] == 1
    assert 0.1 < scales[-1] < 0.2


@pytest.fixture
def config(tmp_path, rng):
    """A graph that cannot be learnt, so that validation gets worse sooner or later."""
    train = {"validate_split": "valid", "patience": 3}
    config = node_graph(tmp_path, rng, 30, 150, num_epochs=12, lr=0.3, train=train)
    write_edges(config, random_triples(rng, 30, 1, 30, 40), config.split_path("valid"))
    return config


def read(config):
    return json.loads(contents(config.checkpoint_path)["validation.json"])


@pytest.mark.slow
def test_the_best_version_stays(config, tmp_path):
    figures = job.train(config)
    found = read(config)
    scores = [entry["mrr"] for entry in found["epochs"]]
    best = found["best"]
    assert len(scores) < 12
    assert scores.index(max(scores)) == len(scores) - 4 == best - 1
    assert figures["version"] == figures["best_epoch"] == best
    assert figures["validation"] == found["epochs"]
    assert pbg.read_version(config.checkpoint_path) == best
    ranked = evaluate.evaluate(changed(config, evaluate={"split": "valid"}))
    assert ranked["metrics"]["mrr"] == max(scores)
    versions = {name for name in contents(config.checkpoint_path) if ".v" in name and "/" not in name}
    assert versions == {f"embeddings_node_0.v{best}.h5", f"model.v{best}.h5", f"checksums.v{best}.xxh128"}
    assert_checksums(config.checkpoint_path)
    assert_checksums(f"{config.checkpoint_path}/best")
    # it is that of a shorter run
    shorter = changed(config, checkpoint_path=str(tmp_path / "shorter"), num_epochs=best, train={})
    job.train(shorter)
    assert embeddings(shorter, "node", 30).equal(embeddings(config, "node", 30))
    # a run that has ended does nothing, also where its copy of the best is deleted, and goes on when asked
    before = contents(config.checkpoint_path)
    assert job.train(config)["num_edges"] == 0
    assert contents(config.checkpoint_path) == before
    patient = changed(config, num_epochs=14, train={"validate_split": "valid"})
    assert job.train(patient)["num_edges"] == (14 - best) * 150
    assert [entry["epoch"] for entry in read(patient)["epochs"]] == list(range(1, 15))
    shutil.rmtree(f"{config.checkpoint_path}/best")
    before = contents(config.checkpoint_path)
    assert job.train(patient)["version"] == read(config)["best"]
    assert contents(config.checkpoint_path) == before


@pytest.mark.slow
def test_a_missing_copy_of_the_best_version_is_an_error(config, monkeypatch):
    after = Validation.after

    def after_and_delete(self, version):
        goes_on = after(self, version)
        if not goes_on:
            shutil.rmtree(f"{config.checkpoint_path}/best")
        return goes_on

    monkeypatch.setattr(Validation, "after", after_and_delete)
    with pytest.raises(FormatError, match=r"best: expected the version to go back to.*validation\.json"):
        job.train(config)
    version = pbg.read_version(config.checkpoint_path)
    assert f"model.v{version}.h5" in contents(config.checkpoint_path)


@pytest.mark.slow
@pytest.mark.parametrize("killed_in", ["keep", "restore", "delete"])
def test_a_killed_run_ends_with_the_same_checkpoint(config, tmp_path, monkeypatch, killed_in):
    other = changed(config, checkpoint_path=str(tmp_path / "other"))
    job.train(other)

    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    target = "_delete" if killed_in == "delete" else killed_in
    commits = []
    commit = pbg.commit

    def counted(*arguments, **named):
        commit(*arguments, **named)
        commits.append(1)
        if len(commits) == read(other)["best"] + 3:  # the last epoch that is trained
            room = pbg.versions if target == "_delete" else pbg
            monkeypatch.setattr(room, target, kill)

    monkeypatch.setattr(pbg, "commit", counted)
    if killed_in == "keep":
        monkeypatch.setattr(pbg, target, kill)
    with pytest.raises(Killed):
        job.train(config)
    monkeypatch.undo()
    job.train(config)
    ours, theirs = contents(config.checkpoint_path), contents(other.checkpoint_path)
    changing = {"training_stats.json", "config.json", "best/config.json"}
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - changing:
        if not name.endswith((".h5", ".xxh128")):  # these hold the configuration, with its paths
            assert ours[name] == theirs[name]
    assert_checksums(config.checkpoint_path)
    assert_checksums(f"{config.checkpoint_path}/best")
    assert embeddings(config, "node", 30).equal(embeddings(other, "node", 30))


@pytest.mark.slow
def test_validation_runs_every_validate_every_epochs_and_at_the_end(config, tmp_path, caplog):
    train = {"validate_split": "valid", "validate_every": 2}
    job.train(changed(config, num_epochs=5, train=train))
    assert "stops nothing" not in caplog.text
    assert [entry["epoch"] for entry in read(config)["epochs"]] == [2, 4, 5]
    with pytest.raises(ConfigError, match=r"train\.validate_split: there is no folder .*dev"):
        job.train(changed(config, train={"validate_split": "dev"}))
    with suppress(ConfigError):
        job.train(changed(config, train={"validate_split": "train"}))
    assert "validate_split: train: the MRR of edges that are trained on stops nothing" in caplog.text
    job.train(changed(config, num_epochs=6, train={"patience": 1}))
    assert "train.patience stops nothing without train.validate_split" in caplog.text
    (tmp_path / "checkpoint" / "validation.json").write_text('{"epochs": [{"epoch": 1}]}')
    with pytest.raises(FormatError, match=r"validation\.json: expected the MRR of each epoch"):
        Trainer(config)
