"""Threads train batches of queries at the same time, and lose nothing by it."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from graphmill.vocab import Side
from tests.train.graphs import make_config, mean_reciprocal_rank, write_graph
from train import job
from train.plan import decide
from train.run import bucket
from train.run.run_metrics import RunMetrics
from train.step.grouped import GroupedStep

ALL_NEGS = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "none", "all_negs": True}]
DRAWN = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "none"}]


def settings(**train):
    return {"relations": ALL_NEGS, "batch_size": 20, "train": {"candidates": 40, **train}}


@pytest.mark.parametrize(
    ("changed", "num_edges", "num_rows", "expected"),
    [
        ({}, 20 * 64 * 4, 80, 4),
        ({}, 20 * 64 * 99, 80, 4),  # more cost quality
        ({}, 20 * 64 * 3 - 1, 80, 2),
        ({}, 0, 80, 1),
        ({}, 20 * 64 * 4, 79, 1),  # too small for a sample
        ({"train": {"candidates": None}}, 20 * 64 * 4, 80, 1),
        ({"relations": DRAWN}, 20, 10, 6),
    ],
)
def test_number_at_once(tmp_path, changed, num_edges, num_rows, expected):
    config = make_config(tmp_path, **(settings() | changed))
    with cpu_threads(6):
        rows = {side: [(num_rows, 0)] for side in Side}
        assert decide.batches_at_once(config, num_edges, rows) == expected


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [40, None])
def test_threads_train_as_well_as_one(tmp_path, rng, monkeypatch, candidates):
    """Steps on a sample run side by side, and of those that move all rows one at a time."""
    group = rng.integers(0, 10, 200)
    members = [np.flatnonzero(group == each) for each in range(10)]
    lhs = rng.integers(0, 200, 6000)
    rhs = np.array([rng.choice(members[each]) for each in group[lhs]])
    # enough queries that some are compared with all rows (train/edges/exact_queries.py)
    triples = np.unique(np.stack([lhs, rng.integers(0, 30, 6000), rhs], axis=1), axis=0)

    lock, running, most, threads = threading.Lock(), Counter(), Counter(), set()
    move = GroupedStep.move

    def watched(self, batch, *rest):
        kind = "all rows" if batch.candidate_C is None else "sample"
        with lock:
            running[kind] += 1
            most[kind] = max(most[kind], running[kind])
            threads.add(torch.get_num_threads())
        try:
            return move(self, batch, *rest)
        finally:
            with lock:
                running[kind] -= 1

    monkeypatch.setattr(GroupedStep, "move", watched)
    found = {}
    for workers in (1, 3):
        config = make_config(
            tmp_path / str(workers),
            num_epochs=4,
            workers=workers,
            dynamic_relations=True,
            **settings(candidates=candidates),
        )
        write_graph(config, {"node": 200}, triples)
        figures = job.train(config)
        plan = figures["plan"]
        assert plan["hogwild"] == (candidates is not None and plan["engine"] == "compiled")
        found[workers] = mean_reciprocal_rank(config, {"node": 200}, triples, triples[:300])
    assert found[3] > 0.8 * found[1]
    assert found[1] > 0.15  # .03 by chance
    assert most["all rows"] == 1
    if plan["hogwild"]:
        assert most["sample"] > 1
        assert threads == {1}
    else:
        assert threads == {1, 3}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_live_loss_is_that_of_the_edges_beside_it(tmp_path, rng, monkeypatch, workers):
    """In the middle of an epoch too: queries of both sides count the edges of their loss."""
    triples = np.stack([rng.integers(0, 200, 4000), np.zeros(4000, int), rng.integers(0, 20, 4000)], axis=1)
    config = make_config(tmp_path, num_epochs=1, workers=workers, lr=1e-12, **settings())
    write_graph(config, {"node": 200}, triples)
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
