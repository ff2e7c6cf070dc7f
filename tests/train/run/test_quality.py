"""Training learns: small graphs are fitted by every operator, and partitions do not cost quality.

An epoch has each edge several times, because a commit takes longer than an epoch of a small graph.
"""

from itertools import cycle

import numpy as np
import pytest

from graphmill.model.operators import OPERATORS
from tests.train.graphs import make_config, mean_reciprocal_rank, random_triples, write_graph
from train import job


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "dynamic"), [*zip(OPERATORS, cycle([False, True]), strict=False)])
def test_every_operator_fits_a_small_graph(tmp_path, operator, dynamic):
    """Sixty random edges between two types, of two relations where the operator can tell these apart.

    (With dot, a translation of rhs adds the same to all of an lhs entity's scores.)
    """
    num_rel = 1 if operator in ("none", "translation") else 2
    relations = [
        {"name": f"r{i}", "lhs": "user", "rhs": "item", "operator": operator} for i in range(num_rel)
    ]
    config = make_config(
        tmp_path,
        entities={"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
        relations=relations[:1] if dynamic else relations,
        dynamic_relations=dynamic,
        global_emb=False,
        dimension=32,
        num_epochs=10,
        batch_size=30,
        num_batch_negs=20,
        num_uniform_negs=20,
        init_scale=0.1,
    )
    counts = {"user": 25, "item": 20}
    triples = random_triples(np.random.default_rng(1), 25, num_rel, 20, 60)
    write_graph(config, counts, np.tile(triples, (6, 1)))
    job.train(config)
    assert mean_reciprocal_rank(config, counts, triples, triples) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"comparator": "cos", "loss_fn": "ranking"},
        {"comparator": "l2", "loss_fn": "ranking", "margin": 1.0},
        {"comparator": "squared_l2", "loss_fn": "softmax"},
        {"comparator": "dot", "loss_fn": "logistic"},
        {"comparator": "dot", "loss_fn": "softmax", "bias": True, "global_emb": True, "max_norm": 8.0},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_comparators_and_losses_fit_a_small_graph(tmp_path, settings):
    config = make_config(
        tmp_path,
        entities={"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
        relations=[{"name": "r", "lhs": "user", "rhs": "item", "operator": "translation"}],
        dimension=32,
        num_epochs=10,
        batch_size=30,
        init_scale=0.1,
        **({"global_emb": False} | settings),
    )
    counts = {"user": 25, "item": 20}
    triples = random_triples(np.random.default_rng(2), 25, 1, 20, 60)
    write_graph(config, counts, np.tile(triples, (8, 1)))
    job.train(config)
    assert mean_reciprocal_rank(config, counts, triples, triples) > 0.8


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
@pytest.mark.parametrize("bucket_order", ["inside_out", "affinity"])
def test_four_partitions_are_as_good_as_one(tmp_path, bucket_order):
    count, train, test = planted(np.random.default_rng(5))
    known = np.concatenate([train, test])
    found = {}
    for num_partitions in (1, 4):
        config = make_config(
            tmp_path / str(num_partitions),
            entities={"node": {"num_partitions": num_partitions}},
            bucket_order=bucket_order,
            dimension=32,
            num_epochs=5,
            regularization_coef=0.01,
        )
        write_graph(config, {"node": count}, np.tile(train, (3, 1)))
        job.train(config)
        found[num_partitions] = mean_reciprocal_rank(config, {"node": count}, known, test)
    # a blind guess scores .025; one that knows the groups, about .25
    assert found[1] > 0.15
    assert found[4] > found[1] - 0.06
