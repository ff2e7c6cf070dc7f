"""Keys of PBG's configuration each do what PBG's do, and training learns with every operator."""

from itertools import cycle

import numpy as np
import pytest
import torch

from graphmill.ask.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError
from graphmill.model.operators import OPERATORS
from tests.logged import messages_of
from tests.train.graphs import (
    embeddings,
    make_config,
    mean_reciprocal_rank,
    node_graph,
    random_edges,
    random_triples,
    relation,
    write_edges,
    write_graph,
)
from train import job
from train.job import log_ignored_keys


def two_types(root, **more):
    """Types of different dimensions that no relation connects; one of them is partitioned."""
    return make_config(
        root,
        entities={"a": {"num_partitions": 2, "dimension": 4}, "b": {"num_partitions": 1, "dimension": 12}},
        relations=[
            relation("complex_diagonal", name="aa", lhs="a", rhs="a"),
            relation("affine", name="bb", lhs="b", rhs="b"),
        ],
        **more,
    )


def test_dimensions_of_types(tmp_path, rng):
    config = two_types(tmp_path, eval_fraction=0.2)
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


def trained(root, triples, weight=None, **more):
    config = make_config(root, num_epochs=1, **more)
    write_graph(config, {"node": 20}, triples, weight=weight)
    job.train(config)
    return embeddings(config, "node", 20)


def test_weights_of_edges_are_numbers_not_integers(tmp_path, rng):
    """An edge that weighs a half counts as one of a relation that does; with 0 it does not count at all."""
    triples = random_triples(rng, 20, 1, 20, 60)
    halves = trained(tmp_path / "edges", triples, np.full(60, 0.5, np.float32))
    half = [relation(weight=0.5)]
    assert torch.equal(halves, trained(tmp_path / "relation", triples, relations=half))
    assert not torch.equal(halves, trained(tmp_path / "ones", triples))
    nothing = trained(tmp_path / "nothing", triples, np.zeros(60, np.float32))
    start = trained(tmp_path / "start", triples, lr=0.0)
    assert torch.equal(nothing, start)


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
def test_all_negatives_of_partitions(tmp_path, rng):
    """With several partitions an edge is compared with all of its bucket's."""
    config = make_config(
        tmp_path, num_partitions=3, relations=[relation("complex_diagonal", all_negs=True)], num_epochs=5,
        batch_size=20, global_emb=False, dimension=32, init_scale=0.1,
    )  # fmt: skip
    triples = random_triples(rng, 30, 1, 30, 90)
    write_graph(config, {"node": 30}, np.tile(triples, (6, 1)))
    assert job.train(config)["num_edges"] == 30 * 90
    assert mean_reciprocal_rank(config, triples, triples) > 0.6


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


def fitted(root, operator, num_rel=1, seed=1, repeats=6, **settings):
    """The MRR of sixty random edges between two types after training on them."""
    num = 1 if settings.get("dynamic_relations") else num_rel
    relations = [relation(operator, name=f"r{i}", lhs="user", rhs="item") for i in range(num)]
    config = make_config(root, **FITTING | {"global_emb": False, "relations": relations} | settings)
    counts = {"user": 25, "item": 20}
    triples = random_triples(np.random.default_rng(seed), 25, num_rel, 20, 60)
    write_graph(config, counts, np.tile(triples, (repeats, 1)))
    assert job.train(config)["num_edges"] == config.num_epochs * repeats * 60
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
    for num_partitions, bucket_order in ((1, "affinity"), (4, "affinity"), (4, "inside_out")):
        settings = {"bucket_order": bucket_order, "dimension": 32, "num_epochs": 5}
        root = tmp_path / f"{num_partitions}{bucket_order}"
        config = make_config(root, num_partitions, regularization_coef=0.01, **settings)
        write_graph(config, {"node": count}, np.tile(train, (3, 1)))
        job.train(config)
        found[num_partitions, bucket_order] = mean_reciprocal_rank(config, known, test)
    # a blind guess scores .025; one that knows the groups, about .25
    assert found[1, "affinity"] > 0.15
    assert min(found.values()) > found[1, "affinity"] - 0.06
