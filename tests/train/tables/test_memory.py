"""A table that does not fit in memory is trained in partitions."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from distributed import system

from graphmill.cluster import runtime
from graphmill.formats import entity_counts
from tests.train.graphs import make_config, write_graph
from tests.workers import apart
from train import job
from train.tables import memory
from train.tables.run_context import RunContext

NUM_ROWS, DIMENSION = 900_000, 80  # partitions large enough for memory of their own (mmap)
MORE_BYTES = 64 << 20  # buffers that no plan counts


def resident_bytes(name):
    """Memory of this process in RAM: `VmRSS` now, `VmHWM` at most until now."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def trained_with(config, worker_bytes):
    """Train in a worker of so much memory; figures, and the most memory that the process has had above now's.

    Partitions have memory of their own, as large ones have that are beyond the limit of `keep_freed_memory`.
    """
    system.MEMORY_LIMIT = worker_bytes
    runtime.keep_freed_memory = lambda: ctypes.CDLL(None).mallopt(runtime._M_MMAP_THRESHOLD, 4 << 20)
    before = resident_bytes("VmRSS")
    return job.train(config) | {"grown_bytes": resident_bytes("VmHWM") - before}


def trained(root, num_partitions, limit_bytes, **train):
    """Figures of a run on a worker with twice `limit_bytes`: half of its memory is for the plan."""
    config = make_config(
        root,
        entities={"node": {"num_partitions": num_partitions}},
        dimension=DIMENSION,
        num_epochs=2,
        batch_size=200,
        bucket_order="affinity",
        train={"resident": "auto", "outside_rows": 0.1, **train},
    )
    rng = np.random.default_rng(1)
    triples = np.stack(
        [rng.integers(NUM_ROWS, size=4000), np.zeros(4000, int), rng.integers(NUM_ROWS, size=4000)], 1
    )
    write_graph(config, {"node": NUM_ROWS}, triples)
    assert sum(entity_counts.read_counts(config.entity_path, {"node": num_partitions})["node"]) == NUM_ROWS
    figures = apart(trained_with, config, 2 * limit_bytes)
    assert [epoch["edges"] for epoch in figures["epochs"]] == [4000, 4000]
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_mib", "train", "expected"),
    [
        (600, {}, {"blocks": 1, "writes_beside": True}),
        (330, {}, {"blocks": 1, "writes_beside": False}),
        (260, {}, {"blocks": 4, "prefetch": False}),
        (260, {"prefetch": True}, {"blocks": 8, "prefetch": True}),
    ],
    ids=["and a copy", "all rows", "blocks", "blocks read ahead"],
)
def test_training_takes_the_memory_that_is_planned(tmp_path, limit_mib, train, expected):
    """A table of 278 MiB with its sums, in 8 partitions."""
    figures = trained(tmp_path, 8, limit_mib << 20, **train)
    assert figures["plan"].items() >= expected.items()
    assert figures["grown_bytes"] <= (limit_mib << 20) + MORE_BYTES


@pytest.mark.slow
def test_without_partitions_a_table_must_fit(tmp_path):
    assert trained(tmp_path, 1, 260 << 20)["grown_bytes"] > 278 << 20


def test_resting_partitions_leave_room_for_rows_that_workers_share(tmp_path):
    relation = {"name": "r", "lhs": "node", "rhs": "tag"}
    config = make_config(
        tmp_path,
        entities={"node": {"num_partitions": 4}, "tag": {"num_partitions": 1}},
        relations=[relation],
        dimension=8,
        defaults="pbg",
    )
    write_graph(config, {"node": 400, "tag": 1000}, np.array([[0, 0, 0], [399, 0, 999]]))
    row_bytes = 4 * (8 + 1)
    bucket = (1 + 1) * 100 * row_bytes  # its partition, and one that comes
    shared = 2 * 1000 * row_bytes
    context = RunContext(config)
    assert memory.resting_bytes(context, 10 * (bucket + shared)) == 4 * (bucket + shared)
    assert memory.resting_bytes(context, bucket) == 0
