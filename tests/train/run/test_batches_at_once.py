"""Threads train batches of queries at the same time, and lose nothing by it."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from tests.train.graphs import make_config, mean_reciprocal_rank, relation, write_graph
from train import job
from train.compiled.compiled_step import Kernel
from train.plan.decide import decide
from train.run import bucket
from train.run.run_metrics import RunMetrics
from train.step.queries import QueryStep
from train.tables.run_context import RunContext


def settings(operator="none", **train):
    relations = [relation(operator, all_negs=True)]
    return {"relations": relations, "batch_size": 20, "dimension": 8, "train": {"candidates": 40, **train}}


@pytest.fixture
def few_products(monkeypatch):
    """Batches are as large as those of graphs that fill two threads, and tables are not small."""
    monkeypatch.setattr("train.plan.decide.LEAST_PRODUCTS", 20 * 40 * 8)
    monkeypatch.setattr("train.compiled.compiled_queries.MOST_ROWS", 20)


NEVER = {"entities": {"node": {"num_partitions": 4}}, "train": {"candidates": 40, "resident": "never"}}


@pytest.mark.parametrize(
    ("operator", "more", "num_edges", "num_rows", "expected", "reason"),
    [
        ("none", {}, 20 * 64 * 4, 80, 4, "at most 4"),
        ("linear", {}, 20 * 64 * 8, 80, 4, "at most 4"),  # more cost quality
        ("rotation", {}, 20 * 64 * 3 - 1, 80, 2, "one for each 64 batches of a bucket, which has 191"),
        ("linear", {}, 1, 80, 1, "which has 0"),
        ("linear", {}, 20 * 64 * 4, 79, 1, "all 79 rows of node"),  # too small for a sample
        ("rotation", {"train": {"candidates": None}}, 20 * 64 * 4, 80, 1, "without train.candidates"),
        ("none", NEVER, 20 * 64 * 24, 159, 1, "all 79 rows of node"),  # of two of four blocks
        ("none", NEVER, 20 * 64 * 12, 160, 2, "which has 128"),  # of six visits
        ("none", {"train": {"candidates": 40, "engine": "plain"}}, 20 * 64 * 4, 80, 1, None),
    ],
)
def test_number_at_once(tmp_path, rng, few_products, operator, more, num_edges, num_rows, expected, reason):
    config = make_config(tmp_path, **(settings(operator) | more))
    triples = np.stack([rng.integers(0, num_rows, num_edges) for _ in range(3)], axis=1)
    triples[:, 1] = 0
    write_graph(config, {"node": num_rows}, triples)
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.batches_at_once, plan.threads_of_batch) == (expected, 6 // expected)
    assert (reason is None) == (plan.reasons == ())
    assert reason is None or reason in plan.reasons[-1]
    assert (f"on {expected} batches at the same time" in str(plan)) == (expected > 1)


@pytest.mark.parametrize(
    ("engine", "candidates", "dimension", "expected"),
    [
        ("auto", None, 8, 6),
        ("plain", None, 6, 1),
        ("auto", 20, 8, 1),  # compiled
        ("plain", 40, 8, 6),  # 40 rows: sampled with 20, not with 40
    ],
)
def test_small_batches_have_one_thread(tmp_path, few_products, engine, candidates, dimension, expected):
    train = {"candidates": candidates, "engine": engine}
    config = make_config(tmp_path, **settings(**train) | {"dimension": dimension})
    write_graph(config, {"node": 40}, np.array([[0, 0, 1]]))
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.threads, plan.threads_of_batch, plan.batches_at_once) == (expected, expected, 1)
    told = "one thread trains: a batch of 20 queries is not shared by 6" in plan.reasons
    assert told == (plan.varying == ()) == (expected == 1)


def test_edges_take_all_threads(tmp_path):
    config = make_config(tmp_path, relations=[relation("none")])
    write_graph(config, {"node": 5}, np.zeros((1, 3), int))
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.batches_at_once, plan.threads_of_batch) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "operator"), [(40, "none"), (None, "none"), (40, "rotation")])
def test_threads_train_as_well_as_one(tmp_path, rng, monkeypatch, few_products, candidates, operator):
    """Steps on a sample run side by side, and of those that move all rows one at a time."""
    group = rng.integers(0, 10, 200)
    members = [np.flatnonzero(group == each) for each in range(10)]
    lhs = rng.integers(0, 200, 6000)
    rhs = np.array([rng.choice(members[each]) for each in group[lhs]])
    # enough queries that some are compared with all rows (train/edges/candidates.py)
    triples = np.unique(np.stack([lhs, rng.integers(0, 30, 6000), rhs], axis=1), axis=0)
    lock, running, most, threads = threading.Lock(), Counter(), Counter(), set()

    def watch(owner, name, kind_of):
        original = getattr(owner, name)

        def watched(self, batch, *rest, **more):
            kind = kind_of(batch)
            with lock:
                running[kind] += 1
                most[kind] = max(most[kind], running[kind])
                threads.add(torch.get_num_threads())
            try:
                return original(self, batch, *rest, **more)
            finally:
                with lock:
                    running[kind] -= 1

        monkeypatch.setattr(owner, name, watched)

    watch(QueryStep, "_move", lambda batch: "all rows" if batch.candidate_C is None else "sample")
    watch(Kernel, "run", lambda _: "sample")
    own = settings(operator, candidates=candidates)
    config = make_config(tmp_path, num_epochs=4, workers=3, dynamic_relations=True, **own)
    write_graph(config, {"node": 200}, triples)
    plan = job.train(config)["plan"]
    is_compiled = plan["steps"] == {"queries": "compiled"}
    assert (plan["batches_at_once"] > 1) == (candidates is not None and is_compiled)
    # by chance .03
    assert mean_reciprocal_rank(config, triples, triples[:300]) > 0.15
    assert most["all rows"] == 1
    if plan["batches_at_once"] > 1:
        assert most["sample"] > 1
        assert threads == {1}
    else:
        assert threads == {3}


def test_the_live_loss_is_that_of_the_edges_beside_it(tmp_path, rng, monkeypatch):
    """In the middle of an epoch too: queries of both sides count the edges of their loss."""
    triples = np.stack([rng.permutation(4000), np.zeros(4000, int), rng.integers(0, 20, 4000)], axis=1)
    config = make_config(tmp_path, num_epochs=1, workers=3, lr=1e-12, **settings())
    write_graph(config, {"node": 4000}, triples)
    told = []
    report = RunMetrics.report
    monkeypatch.setattr(bucket, "CHECK_BATCHES", 1)
    monkeypatch.setattr(
        RunMetrics, "report", lambda self, *said: told.append(said[1:]) or report(self, *said)
    )
    loss = job.train(config)["loss"]
    assert told[-1][0] == 4000
    assert len(told) > 2
    assert [total / num_edges for num_edges, total in told] == pytest.approx([loss] * len(told), rel=0.2)
