"""The stage's door, a Dask task; kill -9 at any moment; PBG's keys; every operator learns."""

import json
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numpy as np
import pytest
import torch

from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.config import Effect, PbgConfig
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError, NotFoundError
from graphmill.model.operators import OPERATORS
from tests.logged import messages_of
from tests.train.graphs import (
    changed,
    embeddings,
    make_config,
    mean_reciprocal_rank,
    node_graph,
    random_edges,
    random_triples,
    relation,
    saved,
    with_train,
    write_edges,
    write_graph,
)
from tests.train.kill_driver import kill_anywhere
from tests.train.run.test_trainer import COUNTS, RELATIONS, mixed, write_mixed
from tests.train.vectors import raw_ids, write_index, write_vectors
from tests.workers import workers
from train import job
from train.job import log_ignored_keys
from train.run.run_metrics import warn_of_growing_loss


@pytest.fixture
def config(tmp_path, rng):
    return node_graph(tmp_path, rng, num_epochs=1)


def test_run_trains_in_a_dask_task_and_more_epochs_resume_it(config, client, tmp_path, caplog):
    caplog.set_level("INFO", "graphmill")
    figures = job.run(changed(config, num_machines=2, num_partition_servers=1), client)
    assert figures["num_epochs"] == figures["version"] == 1
    assert figures["num_parameters"] == 20 * 8 + 8 + 8  # rows, one diagonal, one global embedding
    assert figures["edges_per_s"] > 0
    assert json.dumps(figures)
    assert pbg.read_version(config.checkpoint_path) == 1
    plan = figures["plan"]
    assert (plan["device"], plan["placement"], plan["workers"]) == ("cpu", "files", 1)
    step = plan["steps"]["edges"]
    assert f"training on cpu with the {step} step for edges, 1 thread, all rows in memory" in caplog.text
    told = [line for line in caplog.messages if "has no effect" in line]
    assert len(told) == 2
    assert "num_machines: 2 has no effect: train.num_workers" in told[0]

    figures = job.run(changed(config, num_epochs=3, workers=2, verbose=1), client)
    assert (figures["first_version"], figures["version"]) == (1, 3)
    assert not list(tmp_path.glob("checkpoint.stale*"))
    assert job.run(changed(config, num_epochs=3), client)["num_edges"] == 0


@pytest.mark.slow
def test_worker_that_dies_is_replaced_and_resumes(tmp_path, rng):
    """SIGKILL to the worker in mid-training: Dask runs the task again, which ends with the same bytes."""
    triples = random_triples(rng, 200, 1, 200, 4000)
    undisturbed, disturbed = (make_config(tmp_path / name, num_epochs=30) for name in ("a", "b"))
    for config in (undisturbed, disturbed):
        write_graph(config, {"node": 200}, triples)
    job.claim_checkpoint(undisturbed)
    job.train(undisturbed)
    with workers(1) as client, ThreadPoolExecutor(1) as pool:
        (pid,) = client.run(os.getpid).values()
        figures = pool.submit(job.run, disturbed, client)
        while pbg.read_version(disturbed.checkpoint_path) < 3:
            assert not figures.done()
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert figures.result(timeout=600)["first_version"] >= 3
    ended = [embeddings(config, "node", 200) for config in (undisturbed, disturbed)]
    assert torch.equal(*ended)


def test_fingerprint_holds_what_changes_the_result(config, rng):
    before = job.fingerprint(config)
    kept = {key for key, effect in PbgConfig.effects().items() if effect is not Effect.NEUTRAL}
    assert before["settings"].keys() == kept | {"seed"}
    neutral = {"workers": 7, "verbose": 3, "num_gpus": 1, "background_io": True}
    for settings in (neutral, {"train": {"prefetch": False}}, {"train": {"on_change": "refuse"}}):
        assert job.fingerprint(changed(config, **settings)) == before
    for settings in ({"num_epochs": 9}, {"seed": 1}, {"train": {"relation_init": "identity"}}):
        assert job.fingerprint(changed(config, **settings)) != before
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 61))
    assert job.fingerprint(config) != before


def asked(operator, all_negs=True):
    return [relation(operator, all_negs=all_negs)]


NO_DOT = {"comparator": "cos", "bias": True}
POPULAR = {"relations": asked("none"), "train": {"popularity": True}}
SAMPLED = {"relations": asked("diagonal"), "train": {"candidates": 100}}
JOINED = {"train": {"ensemble": 3}}
PREDICTING = {"relations": asked("diagonal"), "dynamic_relations": True, "global_emb": False,
              "train": {"relation_prediction": 0.7}}  # fmt: skip


@pytest.mark.parametrize(
    ("usual", "changes", "message"),
    [
        (POPULAR, {"relations": asked("none", all_negs=False)}, "needs all_negs for all relations; or"),
        (POPULAR, {"loss_fn": "logistic"}, r"popularity needs loss_fn softmax \(found 'logistic'\)"),
        (POPULAR, NO_DOT, r"needs comparator dot \(found 'cos'\), bias: false; or set it to false"),
        (POPULAR, {"relations": asked("translation")}, r"operator none \(found translation\)"),
        (PREDICTING, {"dynamic_relations": False}, "relation_prediction needs dynamic_relations; or"),
        (PREDICTING, NO_DOT, "needs comparator dot .*, bias: false; or set it to 0"),
        (PREDICTING, {"relations": asked("translation")}, r"operator diagonal or .* \(found 'translation'\)"),
        (SAMPLED, {"relations": asked("none", all_negs=False)}, "needs a relation with all_negs; or"),
        (SAMPLED, NO_DOT | {"comparator": "l2"}, r"dot or cos \(found 'l2'\), bias: false; or leave it out"),
        (JOINED, NO_DOT, "3 adds up .* needs comparator dot .*, bias: false; or set it to 1"),
    ],
)
def test_settings_that_lack_others_are_refused(tmp_path, usual, changes, message):
    job.check(make_config(tmp_path, **usual))
    with pytest.raises(ConfigError, match=rf"train\..*{message}"):
        job.check(make_config(tmp_path, **usual | changes))


def test_edges_without_weight_are_told_of_at_the_end_of_training(tmp_path, rng, near_client, caplog):
    config = make_config(tmp_path, num_epochs=2)
    for weights, is_told in ((np.ones(30), False), (np.zeros(30), True)):
        write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 30), weight=weights)
        job.run(config, near_client)
        assert ("do all edges weigh 0?" in caplog.text) == is_told


def test_a_rate_that_is_too_large_is_told_at_the_end_of_training(tmp_path, rng, near_client, caplog):
    config = node_graph(tmp_path, rng, num_epochs=6, lr=50.0, max_norm=100.0)
    for losses in ([5.0, 4.0, 4.1], []):
        warn_of_growing_loss(config, [{"epoch": 1, "loss": loss} for loss in losses])
    assert not messages_of(caplog)
    job.run(config, near_client)
    assert "the loss has grown from " in caplog.text
    assert "set lr lower than 50" in caplog.text


ASKED = [RELATIONS[0] | {"all_negs": True}, *RELATIONS[1:]]  # queries, and edges
IN_KERNELS = [each | {"operator": "complex_diagonal"} for each in RELATIONS]  # else not on the device


def with_vectors(config, path, rng):
    """The configuration with vectors, longer than the rows, that half of the users start from."""
    ids = list(raw_ids(COUNTS["user"], config.entities["user"].num_partitions))
    write_index(config, {"user": ids})
    write_vectors(path, ids[::2], rng.normal(size=(len(ids[::2]), 2 * config.dimension)))
    return with_train(config, init_embeddings={"user": str(path)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "train", "every"),
    [
        ("files", {}, 11),
        ("device", {"resident": "always"}, 13),
        ("buffer", {"device_partitions": 3}, 17),
        ("vectors", {"ensemble": 2}, 31),
    ],
)
def test_kill_anywhere_and_run_again(tmp_path, rng, placement, train, every):
    in_files = placement in ("files", "vectors")
    settings = {"eval_fraction": 0.1, "checkpoint_preservation_interval": 1, "batch_size": 20}
    settings |= {"relations": ASKED} if in_files else {"relations": IN_KERNELS, "global_emb": False}
    config = mixed(tmp_path, num_batch_negs=10, bucket_order="random", train=train, **settings)
    write_mixed(config, rng)
    if placement == "vectors":
        config = with_vectors(config, tmp_path / "vectors.parquet", rng)
    order = kill_anywhere(config, every, 0 if in_files else 0.005)  # files are written beside such steps
    # two epochs of nine buckets, each with several steps and renames: a sample of all the moments
    assert len(order) > 80
    # two versions of each model: where all rows stay in memory, steps come between the files of the first
    runs = re.findall("c+", order.replace(".", ""))
    assert (len(runs) > 2 * config.train.ensemble) == (not in_files)


def test_dimensions_of_types(tmp_path, rng):
    """Types that no relation connects; one of them is partitioned."""
    entities = {"a": {"num_partitions": 2, "dimension": 4}, "b": {"num_partitions": 1, "dimension": 12}}
    operators = {"a": "complex_diagonal", "b": "affine"}
    relations = [relation(each, name=name, lhs=name, rhs=name) for name, each in operators.items()]
    config = make_config(tmp_path, entities=entities, relations=relations, eval_fraction=0.2)
    counts = {"a": 30, "b": 20}
    triples = random_edges(config, counts, rng, 180)
    write_graph(config, counts, triples)
    write_edges(config, triples[::9], config.split_path("test"))
    job.train(config)
    version = pbg.read_version(config.checkpoint_path)
    assert pbg.read_embeddings(config.checkpoint_path, "a", 1, version)[0].shape == (15, 4)
    assert pbg.read_embeddings(config.checkpoint_path, "b", 0, version)[0].shape == (20, 12)
    state, _, _ = pbg.read_model(config.checkpoint_path, version)
    shapes = {key.removeprefix("rhs_operators."): tuple(value.shape) for key, value in state.items()}
    assert shapes["0.real"] == (2,)
    assert shapes["1.linear_transformation"] == (12, 12)
    assert shapes["global_embs.emb_b"] == (12,)
    assert evaluate.evaluate(config)["metrics"]["mrr"] > 0


def test_evaluation_takes_the_negatives_of_training_where_it_has_none_of_its_own(tmp_path, rng):
    """With one candidate the rank is 1 or 2."""
    numbers = {"num_epochs": 1, "num_batch_negs": 0, "num_uniform_negs": 1, "eval_fraction": 0.5}
    own = {"eval_num_batch_negs": None, "eval_num_uniform_negs": None}
    config = node_graph(tmp_path, rng, **numbers, **own)
    job.train(config)
    (line,) = pbg.read_stats(config.checkpoint_path)
    assert line["eval_stats_before"]["metrics"]["pos_rank"] <= 2
    assert line["eval_stats_before"]["metrics"]["r10"] == 1


@pytest.mark.slow
def test_edges_of_partitions_with_all_and_with_drawn_negatives(tmp_path, rng):
    """With all_negs, an edge is compared with all entities of its bucket; some edges are held out."""
    relations = [relation("complex_diagonal", name=name, all_negs=name == "a") for name in ("a", "b")]
    config = make_config(
        tmp_path, num_partitions=3, relations=relations, num_epochs=10, lr=0.3, dimension=32, init_scale=0.1,
        global_emb=False, num_batch_negs=0, num_uniform_negs=20, eval_fraction=0.05,
        train={"optimizer": "adagrad"},
    )  # fmt: skip
    triples = random_triples(rng, 30, 2, 30, 60)
    write_graph(config, {"node": 30}, triples)
    assert 0.8 * 10 * 60 < job.train(config)["num_edges"] < 10 * 60
    assert mean_reciprocal_rank(config, triples, triples) > 0.85


@pytest.mark.slow
def test_reciprocal_relations_are_evaluated_as_they_were_trained(tmp_path, rng):
    """Each side is asked for through an operator of its own, in training and in ranking."""
    config = make_config(
        tmp_path, relations=[relation(name=name) for name in ("r0", "r1")], num_epochs=80, global_emb=False,
        dimension=32, init_scale=0.1, train={"reciprocal_relations": True},
    )  # fmt: skip
    # no edge has one the other way round: a single symmetric operator cannot tell the ends apart
    triples = random_triples(rng, 30, 2, 30, 300)
    triples = triples[triples[:, 0] < triples[:, 2]]
    write_graph(config, {"node": 30}, triples)
    job.train(config)
    assert mean_reciprocal_rank(config, triples, triples) > 0.85


def test_training_before_etl_says_what_to_run(tmp_path, near_client):
    with pytest.raises(NotFoundError, match="entities: there are no entities; run the stage etl first"):
        job.run(make_config(tmp_path), near_client)


def test_edges_without_negatives(tmp_path, rng):
    """Only logistic learns from them, as in PBG; the others are refused rather than train nothing."""
    none = {"num_epochs": 1, "num_batch_negs": 0, "num_uniform_negs": 0}
    with pytest.raises(ConfigError, match=r"found 0 for both, and no relation with all_negs"):
        job.check(make_config(tmp_path, loss_fn="ranking", **none))
    everyone = [relation("none", all_negs=True)]
    for settings in ({"loss_fn": "logistic"}, {"loss_fn": "softmax", "relations": everyone}):
        config = node_graph(tmp_path / settings["loss_fn"], rng, **none, **settings)
        job.check(config)
        job.train(config)
        rows, _ = pbg.read_embeddings(config.checkpoint_path, "node", 0, 1)
        assert np.linalg.norm(rows) > 0.5  # of the first rows: 0.01


def test_logistic_with_cos_trains_with_a_warning(tmp_path, caplog):
    """PBG warns too: scores between -1 and 1 are hardly probabilities."""
    log_ignored_keys(make_config(tmp_path, loss_fn="logistic", comparator="cos"))
    assert "logistic learns little with comparator cos" in caplog.text
    caplog.clear()
    log_ignored_keys(make_config(tmp_path, loss_fn="logistic", comparator="dot"))
    assert not messages_of(caplog)
    log_ignored_keys(make_config(tmp_path, num_epochs=0))
    assert "num_epochs: 0 trains nothing" in caplog.text


FITTING = {
    "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
    "dimension": 32,
    "num_epochs": 10,
    "batch_size": 30,
    "num_batch_negs": 20,
    "num_uniform_negs": 20,
    "init_scale": 0.1,
}


def fitting(root, operator, num_rel=1, repeats=6, **settings):
    """A configuration of two types, and sixty random edges between them, which are written so many times."""
    num = 1 if settings.get("dynamic_relations") else num_rel
    relations = [relation(operator, name=f"r{i}", lhs="user", rhs="item") for i in range(num)]
    config = make_config(root, **FITTING | {"global_emb": False, "relations": relations} | settings)
    triples = random_triples(np.random.default_rng(1), 25, num_rel, 20, 60)
    write_graph(config, {"user": 25, "item": 20}, np.tile(triples, (repeats, 1)))
    return config, triples


def fitted(*given, **settings):
    """The MRR of the edges after training on them."""
    config, triples = fitting(*given, **settings)
    assert job.train(config)["num_edges"] == config.num_epochs * 6 * 60
    return mean_reciprocal_rank(config, triples, triples)


# Settings by operator, so that each comparator and each loss comes.
FITS = {
    "none": {"comparator": "l2", "loss_fn": "ranking", "margin": 1.0},
    "diagonal": {"comparator": "cos", "loss_fn": "ranking"},
    "translation": {"comparator": "squared_l2", "loss_fn": "softmax"},
    "linear": {"comparator": "dot", "loss_fn": "logistic"},
    "affine": {"bias": True, "global_emb": True, "max_norm": 8.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "dynamic"), [*zip(OPERATORS, cycle([False, True]), strict=False)])
def test_every_operator_comparator_and_loss_fits_a_small_graph(tmp_path, operator, dynamic):
    """Two relations, where the operator can tell these apart."""
    num_rel = 1 if operator == "none" else 2
    assert fitted(tmp_path, operator, num_rel, dynamic_relations=dynamic, **FITS.get(operator, {})) > 0.9


def planted(rng, num_groups=12, size=20, degree=6):
    """Edges inside groups that are hidden in the ids, split in train and test."""
    count = num_groups * size
    group = rng.permutation(np.repeat(np.arange(num_groups), size))
    members = [np.flatnonzero(group == g) for g in range(num_groups)]
    pairs = {(lhs, int(rhs)) for lhs in range(count) for rhs in rng.choice(members[group[lhs]], degree)}
    triples = np.array([(lhs, 0, rhs) for lhs, rhs in sorted(pairs) if lhs != rhs])
    rng.shuffle(triples)
    return count, triples[100:], triples[:100]


@pytest.mark.slow
def test_four_partitions_are_as_good_as_one(tmp_path):
    count, train, test = planted(np.random.default_rng(5))
    known = np.concatenate([train, test])
    found = {}
    for num in (1, 4):
        config = make_config(tmp_path / str(num), num, dimension=32, num_epochs=5, regularization_coef=0.01)
        write_graph(config, {"node": count}, np.tile(train, (3, 1)))
        job.train(config)
        found[num] = mean_reciprocal_rank(config, known, test)
    # a blind guess scores .025; one that knows the groups, about .25
    assert found[1] > 0.15
    assert found[4] > found[1] - 0.06


TYPES = {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}}
QUERIES = ({"engine": "plain", "optimizer": "adagrad"}, {"all_negs": True, "max_norm": 0.5})
# A configuration of each engine; each epoch is one step.
ENGINES = {
    "compiled": ({"engine": "auto"}, {"max_norm": 0.5, "global_emb": True}),
    "plain": ({"engine": "plain"}, {"max_norm": 0.5, "global_emb": True, "comparator": "cos"}),
    "plain, two-sided": ({"engine": "plain", "reciprocal_relations": True}, {"global_emb": False}),
    "grouped, rhs": (QUERIES[0], QUERIES[1] | {"disable_lhs_negs": True}),
    "grouped, lhs": (QUERIES[0], QUERIES[1] | {"disable_rhs_negs": True}),
    "fused": ({"engine": "fused"}, {"global_emb": False}),
    "dynamic": ({"engine": "auto"}, {"global_emb": False, "dynamic_relations": True}),
    "fused, dynamic": ({"engine": "fused"}, {"global_emb": False, "dynamic_relations": True}),
}


def configured(root, engine, freeze=(), **more):
    train, settings = ENGINES[engine]
    settings = dict(settings)
    all_negs = settings.pop("all_negs", False)
    relations = [relation(name="likes", lhs="user", rhs="item", all_negs=all_negs)]
    return make_config(
        root,
        **{"entities": TYPES, "relations": relations, "num_epochs": 1, "batch_size": 1000, "init_scale": 1.0},
        **({"regularization_coef": 0.01} | settings | more),
        train=train | {"freeze": list(freeze)},
    )


def write(config, rng, **counts):
    edges = random_edges(config, counts, rng, 300)
    if config.dynamic_relations:
        edges[:, 1] = rng.integers(2, size=300)
    write_graph(config, counts, edges)


def state_of(config):
    """All rows, sums, parameters, and their optimizer's states, by type and by relation."""
    every = saved(config)
    found = {name: [every[key] for key in every if key[0] == name] for name in config.entities}
    keys = [key for key in every if "operators" in key]
    keys += [key for name in config.entities if (key := f"global_embs.emb_{name}") in every]
    found["likes"] = []
    for number, key in enumerate(keys):
        owner = key.removeprefix("global_embs.emb_") if "global" in key else "likes"
        found[owner] += [every[key], every[number, "sum"], torch.tensor(float(every[number, "step"]))]
    assert (len(keys), "sum") not in every
    return found


def same(ours, theirs):
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_frozen_stays_and_the_rest_moves_as_ever(tmp_path, rng, engine):
    """One step from a trained checkpoint: parts that are not frozen move as without `freeze`."""
    first = configured(tmp_path / "first", engine)
    write(first, rng, user=30, item=20)
    job.train(first)
    before = state_of(first)

    def continued(*freeze):
        config = configured(
            tmp_path / ("-".join(freeze) or "free"), engine, freeze, init_path=first.checkpoint_path
        )
        for folder in ("entities", "edges"):
            shutil.copytree(tmp_path / "first" / folder, f"{config.output}/{folder}")
        figures = job.train(config)
        expected = engine.partition(",")[0]
        step = {"grouped": "plain", "dynamic": "compiled"}.get(expected, expected)
        assert [*figures["plan"]["steps"].values()] == [step]
        return state_of(config)

    free = continued()
    for freeze in (("item",), ("user", "likes")):
        after = continued(*freeze)
        for name in ("user", "item", "likes"):
            assert same(after[name], (before if name in freeze else free)[name]), (freeze, name)
            assert not same(before[name], free[name])


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_with_partitions_and_types_on_both_sides(tmp_path, rng, engine):
    """A frozen type may be on both sides of one relation; a lower max_norm does not shorten its rows."""
    types = {name: {"num_partitions": 2} for name in ("user", "item")}
    relations = [
        relation("translation", name="knows", lhs="user", rhs="user"),
        relation(name="likes", lhs="user", rhs="item"),
    ]
    first = make_config(tmp_path / "first", entities=types, relations=relations, init_scale=1.0)
    write(first, rng, user=20, item=20)
    job.train(first)
    update = {"checkpoint_path": str(tmp_path / "then"), "init_path": first.checkpoint_path, "max_norm": 0.1}
    section = TrainConfig(freeze=["user", "knows"], engine="auto" if engine == "compiled" else "plain")
    config = first.model_copy(update=update).with_section(section)
    job.train(config)
    for part in range(2):
        rows = [pbg.read_embeddings(each.checkpoint_path, "user", part, 2)[0] for each in (first, config)]
        assert rows[0].tobytes() == rows[1].tobytes()
        rows = [pbg.read_embeddings(each.checkpoint_path, "item", part, 2)[0] for each in (first, config)]
        assert not (rows[0] == rows[1]).any()
    before, after = (pbg.read_model(each.checkpoint_path, 2)[0] for each in (first, config))
    assert torch.equal(before["rhs_operators.0.translation"], after["rhs_operators.0.translation"])
    assert not torch.equal(before["rhs_operators.1.diagonal"], after["rhs_operators.1.diagonal"])


def test_several_workers_average_nothing_that_is_frozen(tmp_path, rng, client):
    """-0.0 in a row would become 0.0 by a weighted mean with itself."""
    types = {"user": {"num_partitions": 4}, "city": {"num_partitions": 1}}
    relations = [
        {"name": "knows", "lhs": "user", "rhs": "user", "operator": "translation"},
        {"name": "lives", "lhs": "user", "rhs": "city", "operator": "diagonal"},
    ]
    first = make_config(tmp_path / "first", entities=types, relations=relations, global_emb=True)
    write(first, rng, user=40, city=4)
    job.train(first)
    rows, state = pbg.read_embeddings(first.checkpoint_path, "city", 0, 2)
    rows[0] = -0.0
    shutil.copytree(first.checkpoint_path, tmp_path / "changed")
    path = str(tmp_path / "changed")
    (tmp_path / "changed/checksums.v2.xxh128").unlink()
    (tmp_path / "changed/embeddings_city_0.v2.h5").unlink()
    pbg.write_embeddings(path, "city", 0, 2, rows, state, first.pbg(), None)
    section = TrainConfig(freeze=["city", "knows"], num_workers=2)
    update = {"checkpoint_path": str(tmp_path / "then"), "init_path": path}
    config = first.model_copy(update=update).with_section(section)
    figures = job.run(config, client)
    after, sums = pbg.read_embeddings(config.checkpoint_path, "city", 0, figures["version"])
    assert after.tobytes() == rows.tobytes()
    assert torch.equal(sums["state"][0]["sum"], state["state"][0]["sum"])
    before, then = (pbg.read_model(each, 2)[0] for each in (path, config.checkpoint_path))
    for key, value in before.items():
        frozen = key in ("rhs_operators.0.translation", "global_embs.emb_city")
        assert torch.equal(value, then[key]) == frozen, key


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (["usre"], r"train\.freeze\[0\]: no entity type or relation 'usre'; did you mean 'user'\?"),
        (["user", "item", "likes"], "nothing is left to train"),
    ],
)
def test_names_are_checked_before_anything_starts(tmp_path, freeze, message):
    with pytest.raises(ConfigError, match=message):
        job.check(configured(tmp_path, "plain", freeze))


def test_a_type_from_nowhere_is_told_of(tmp_path, rng, caplog):
    config = configured(tmp_path, "plain", ["item"])
    write(config, rng, user=30, item=20)
    caplog.set_level("WARNING", "graphmill")
    job.warn_of_drawn(config)
    assert "train.freeze: item: there is no init_path, so the vectors stay as they are drawn" in caplog.text
    assert config.train.result_settings()["freeze"] == ["item"]
    assert "freeze" not in configured(tmp_path, "plain").train.result_settings()  # as in older checkpoints
