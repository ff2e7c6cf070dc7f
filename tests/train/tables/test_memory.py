"""A table that does not fit in memory is trained in partitions."""

import json
import subprocess
import sys

import numpy as np
import pytest

from graphmill.formats import entity_counts
from tests import REPOSITORY
from tests.train.graphs import make_config, write_graph
from train.tables import memory
from train.tables.run_context import RunContext

NUM_ROWS, DIMENSION = 1_800_000, 80  # partitions large enough for memory of their own (mmap)
TABLE_BYTES = NUM_ROWS * DIMENSION * 4
LIMIT_BYTES = 520 << 20


def trained(root, num_partitions, prefetch):
    """A run in a process that may allocate LIMIT_BYTES."""
    config = make_config(
        root,
        entities={"node": {"num_partitions": num_partitions}},
        dimension=DIMENSION,
        num_epochs=1,
        batch_size=200,
        bucket_order="affinity",
        train={"prefetch": prefetch, "outside_rows": 0.1},
    )
    rng = np.random.default_rng(1)
    triples = np.stack(
        [rng.integers(NUM_ROWS, size=4000), np.zeros(4000, int), rng.integers(NUM_ROWS, size=4000)], 1
    )
    write_graph(config, {"node": NUM_ROWS}, triples)
    assert sum(entity_counts.read_counts(config.entity_path, {"node": num_partitions})["node"]) == NUM_ROWS
    conf = root / "conf.yaml"
    conf.write_text(json.dumps(config.model_dump(mode="json")))
    return subprocess.run(
        [sys.executable, "-m", "tests.train.memory_driver", str(conf), str(LIMIT_BYTES)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_table_larger_than_the_memory(tmp_path):
    assert TABLE_BYTES > LIMIT_BYTES
    for prefetch in (False, True):
        done = trained(tmp_path / str(prefetch), 17, prefetch)
        assert done.returncode == 0, done.stderr[-2000:]
        (epoch,) = json.loads(done.stdout)["epochs"]
        assert epoch["edges"] == 4000
        assert epoch["partitions_read"] > 16
    # the limit is real: in one piece the table does not fit
    whole = trained(tmp_path / "whole", 1, False)
    assert whole.returncode != 0
    assert "memory" in whole.stderr


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
