"""Partitions and blocks that the memory of workers holds; of devices: tests/train/gpu/test_training.py."""

import logging

import numpy as np
import pytest

from graphmill.cluster.runtime import cpu_threads
from tests.train.graphs import make_config, random_triples, write_graph
from train.plan import decide
from train.tables.run_context import RunContext


@pytest.mark.slow
def test_memory_and_workers_decide_how_many_blocks_there_are(tmp_path):
    """At least two for each worker, which holds two; more where its memory holds smaller ones."""
    num_rows = 80_000
    triples = random_triples(np.random.default_rng(1), num_rows, 1, num_rows, 1000)

    def configured(num_partitions=16, **train):
        parts, train = {"node": {"num_partitions": num_partitions}}, {"resident": "auto"} | train
        root = tmp_path / str(num_partitions)
        config = make_config(root, dimension=100, batch_size=10, entities=parts, train=train)
        if not root.exists():
            write_graph(config, {"node": num_rows}, triples)
        return config

    def blocks(workers, worker_bytes, **settings):
        return decide.blocks_of_workers(RunContext(configured(**settings)), workers, worker_bytes)

    rows = num_rows * 4 * 101
    assert [blocks(workers, 100 * rows) for workers in (2, 3, 8)] == [4, 6, 16]
    limits = [int(2 * (6 * joined / 16 * rows + 0.1 * rows)) for joined in (4, 3, 2, 1)]
    assert [blocks(2, limit) for limit in limits] == [4, 6, 8, 16]
    assert blocks(2, rows // 8) == 16  # it does not fit, and there are no more
    assert blocks(9, 100 * rows) == 0  # no two partitions for each worker: bucket by bucket
    assert blocks(2, 100 * rows, num_partitions=3) == 0
    assert blocks(2, 100 * rows, memory_partitions=4) == 8
    assert blocks(2, 100 * rows, memory_partitions=16) == 4
    assert blocks(2, 100 * rows, resident="never") == 16
    held = (2, 3, 4, 6, 8, 15, 16)
    assert [decide.blocks_for(configured(), each) for each in held] == [16, 16, 8, 6, 4, 3, 1]


@pytest.mark.parametrize(
    ("train", "workers", "threads", "varying"),
    [
        ({}, 1, 1, []),
        ({}, 1, 2, ["2 threads"]),
        ({"bucket_assignment": "tournament"}, 2, 1, []),
        ({}, 2, 3, ["train.bucket_assignment: dynamic", "3 threads"]),
    ],
)
def test_a_plan_says_whether_it_repeats(tmp_path, caplog, train, workers, threads, varying):
    config = make_config(tmp_path, entities={"node": {"num_partitions": 4}}, train=train)
    write_graph(config, {"node": 40}, random_triples(np.random.default_rng(1), 40, 1, 40, 100))
    with cpu_threads(threads), caplog.at_level(logging.INFO, "graphmill"):
        plan = decide.decide(RunContext(config), workers)
        plan.log()
    assert [found.split(" (")[0] for found in plan.varying] == varying
    assert ("gives the same bytes" in caplog.text) == (not varying)
    assert all(each in caplog.text for each in varying)
