"""Partitions and blocks that the memory of workers holds; of devices: tests/train/gpu/test_training.py."""

import logging

import numpy as np
import pytest

from graphmill.cluster.runtime import cpu_threads
from tests.train.graphs import make_config, random_triples, write_graph
from train.plan import decide
from train.tables import memory
from train.tables.run_context import RunContext


@pytest.mark.slow
def test_memory_decides_how_many_partitions_are_joined(tmp_path):
    def made(train):
        parts, train = {"node": {"num_partitions": 16}}, {"outside_rows": 0.5} | train
        return make_config(tmp_path, entities=parts, dimension=100, batch_size=10, train=train)

    config = made({})
    write_graph(config, {"node": 80_000}, random_triples(np.random.default_rng(1), 80_000, 1, 80_000, 1000))
    context = RunContext(config)
    reasons: list[str] = []
    rows = 80_000 * 4 * 101
    copied, whole = (memory.whole_bytes(context, writes_beside=beside) for beside in (True, False))
    assert 2 * rows < copied < 2.2 * rows
    assert rows < whole < 1.2 * rows
    assert decide.rows_in(context, 2 * copied, reasons) == decide.PlannedRows("device", blocks=1)
    assert reasons.pop().startswith("all rows are in memory")
    assert decide.rows_in(context, 2 * whole, reasons) == decide.PlannedRows(
        "device", blocks=1, writes_beside=False
    )
    assert "no room for a copy" in reasons.pop()
    # 3 of four blocks, without outside rows; 3 + 6 / 2 of 16
    limits = [int(2 * (share * rows + 0.1 * rows)) for share in (3 / 4, 6 / 16)]
    found = [decide.rows_in(context, limit, reasons) for limit in limits]
    assert found == [decide.PlannedRows("files", blocks=blocks, prefetch=False) for blocks in (4, 16)]
    assert decide.rows_in(context, rows // 8, reasons).blocks == 16  # it does not fit, and there are no more
    # 6 + 8 / 2, where the next visit's are read during training
    context = RunContext(made({"prefetch": True}))
    limits = [int(2 * (10 * joined / 16 * rows + 0.1 * rows)) for joined in (2, 1)]
    found = [decide.rows_in(context, limit, reasons) for limit in limits]
    assert found[1] == decide.PlannedRows("files", blocks=16, prefetch=True)
    assert [each.writes_beside for each in found] == [False, True]
    assert [decide.blocks_for(config, held) for held in (2, 3, 4, 6, 8, 15, 16)] == [16, 16, 8, 6, 4, 3, 1]


@pytest.mark.slow
def test_memory_and_workers_decide_how_many_blocks_there_are(tmp_path):
    """At least two for each worker, which holds two; more where its memory holds smaller ones."""

    def blocks(workers, worker_bytes, num_partitions=16, **train):
        parts, train = {"node": {"num_partitions": num_partitions}}, {"resident": "auto"} | train
        root = tmp_path / str(num_partitions)
        config = make_config(root, dimension=100, batch_size=10, entities=parts, train=train)
        if not root.exists():
            write_graph(config, {"node": 80_000}, triples)
        return decide.blocks_of_workers(RunContext(config), workers, worker_bytes)

    triples = random_triples(np.random.default_rng(1), 80_000, 1, 80_000, 1000)
    rows = 80_000 * 4 * 101
    assert [blocks(workers, 100 * rows) for workers in (2, 3, 8)] == [4, 6, 16]
    limits = [int(2 * (6 * joined / 16 * rows + 0.1 * rows)) for joined in (4, 3, 2, 1)]
    assert [blocks(2, limit) for limit in limits] == [4, 6, 8, 16]
    assert blocks(2, rows // 8) == 16  # it does not fit, and there are no more
    assert blocks(9, 100 * rows) == 0  # no two partitions for each worker: bucket by bucket
    assert blocks(2, 100 * rows, num_partitions=3) == 0
    assert blocks(2, 100 * rows, memory_partitions=4) == 8
    assert blocks(2, 100 * rows, memory_partitions=16) == 4
    assert blocks(2, 100 * rows, resident="never") == 16


@pytest.mark.parametrize(
    ("train", "workers", "threads", "varying"),
    [
        ({}, 1, 1, []),
        ({}, 1, 2, ["2 threads"]),
        ({}, 2, 1, ["train.bucket_assignment: dynamic"]),
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
