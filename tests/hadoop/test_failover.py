"""Two namenodes behind a name service, three datanodes: a run goes on when one of either kind goes away."""

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.tables.data_file import plain_file
from etl.tables.ranges import find_ranges
from graphmill import storage
from graphmill.config.sections.etl import TableConfig
from graphmill.errors import StorageError
from graphmill.storage import hdfs_writer
from tests import REPOSITORY
from tests.etl.graphs import same_bytes, write_parquet
from tests.etl.run.test_go_on import figures_of, graph_config, stopped_before
from tests.hadoop.cluster import WAIT_S, MiniHdfs
from tests.hadoop.files import files_at
from tests.hadoop.fixture import hadoop
from tests.processes import DASK_SUBMIT, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.hdfs, pytest.mark.slow]

CONF = """
entities: {node: {num_partitions: 2}}
relations: [{name: r, lhs: node, rhs: node, operator: diagonal}]
dimension: 8
num_epochs: 25
comparator: dot
loss_fn: softmax
lr: 0.1
global_emb: false
eval_fraction: 0
workers: 1
train: {commit_interval_s: 0}
etl:
  tables: [{path: "edges/*.parquet", lhs: lhs, rhs: rhs, relation: r}]
  chunk_rows: 5000
  holdout: {test: 0.01}
evaluate: {split: test}
"""


SETTINGS = {
    "mini.namenodes": "2",
    # A datanode is stale, and not written to where others are, after seconds instead of half a minute.
    "dfs.namenode.avoid.write.stale.datanode": "true",
    "dfs.namenode.stale.datanode.interval": "3000",
    "dfs.heartbeat.interval": "1",
}


@pytest.fixture
def available() -> Iterator[MiniHdfs]:
    """An HDFS with a name service."""
    with hadoop(num_datanodes=3, settings=SETTINGS) as cluster:
        yield cluster


def write_edges(uri: str, num_files: int, rows: int) -> None:
    rng = np.random.default_rng(3)
    for number in range(num_files):
        ends = rng.integers(0, 5000, (2, rows))
        table = pa.table({side: [f"node-{each}" for each in ids] for side, ids in zip(("lhs", "rhs"), ends)})  # noqa: B905
        with storage.atomic_output(f"{uri}/edges/part-{number}.parquet") as stream:
            pq.write_table(table, stream)


def pipeline(folder, root, log, before=()):
    conf = folder / "c.yaml"
    conf.write_text(CONF)
    overrides = ["--set", f"input={root}", "--set", f"output={root}/out"]
    command = [*before, DASK_SUBMIT, "--master", "local[2]", "pipeline.py", "--conf", str(conf), *overrides]
    return running(command, log, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


@pytest.mark.hadoop_full
def test_a_run_survives_a_rolling_restart_of_datanodes_and_a_failover_of_the_namenode(available, tmp_path):
    """In etl and in training; the output is that of an undisturbed run."""
    roots = {"hdfs": f"{available.uri}/failover", "local": str(tmp_path / "undisturbed")}
    assert available.uri == "hdfs://graphmill"
    for root in roots.values():
        write_edges(root, 4, 10_000)
    with pipeline(tmp_path, roots["local"], tmp_path / "local.log") as undisturbed:
        assert undisturbed.wait(400) == 0, (tmp_path / "local.log").read_text()
    log, sign = tmp_path / "hdfs.log", tmp_path / "held"
    held = [sys.executable, "-m", "tests.held", "checkpoint_version.txt", "12", str(sign)]
    trained = f"{roots['hdfs']}/out/checkpoint/checkpoint_version.txt"
    with pipeline(tmp_path, roots["hdfs"], log, held) as disturbed:
        wait_until(lambda: b"etl: starting" in log.read_bytes(), WAIT_S)
        for has_begun in (lambda: True, lambda: storage.exists(trained)):
            wait_until(has_begun, WAIT_S)
            for _ in range(3):  # each of the three: the first is the one that has run for the longest time
                available.tell("restart-datanode 0")
        wait_until(sign.exists, WAIT_S)
        available.tell("failover")
        assert b"train: done" not in log.read_bytes()
        sign.unlink()
        assert disturbed.wait(400) == 0, log.read_text()
    for folder in ("edges/train", "entities/entity_index/node", "embeddings/node"):
        written = {name: files_at(f"{root}/out/{folder}") for name, root in roots.items()}
        for files in written.values():
            files.pop(storage.MARKER, None)
        assert same_bytes(written["hdfs"]) == same_bytes(written["local"])
        assert written["hdfs"]


def test_a_datanode_stopped_while_a_file_is_written_loses_nothing(available, monkeypatch):
    """In the middle of a block, and then for new files that the namenode still places on the stopped one."""
    monkeypatch.setattr(hdfs_writer, "STALL_S", 4.0)
    blocks = [bytes([number]) * (1 << 20) for number in range(8)]
    for number in range(3):
        with storage.open_output(f"{available.uri}/slowly/{number}") as stream:
            for at, block in enumerate(blocks):
                stream.write(block)
                time.sleep(0.02)
                if (number, at) == (0, 3):
                    available.tell("stop-datanode 0")
    hdfs_writer.within(300, gc.collect)  # closing what was given up could take for ever
    for number in range(3):
        assert storage.read_bytes(f"{available.uri}/slowly/{number}") == b"".join(blocks)


@pytest.mark.hadoop_full
def test_a_run_survives_the_loss_of_a_datanode_with_work_files(available: MiniHdfs, tmp_path: Path) -> None:
    """The run that comes next goes on from the other copies, or does anew what had only one."""
    with distributed.Client(processes=False, threads_per_worker=4, dashboard_address=":0") as client:
        undisturbed = figures_of(graph_config(tmp_path), client)[0]
        configs = {
            copies: graph_config(tmp_path, f"{available.uri}/work-{copies}", work_replication=copies)
            for copies in (1, 2)
        }
        for config in configs.values():
            stopped_before("translate", client, config)
        available.tell("stop-datanode 0")
        for copies, config in configs.items():
            figures, num_tasks = figures_of(config, client)
            assert figures == undisturbed
            assert copies == 1 or "etl: encode" not in num_tasks
            for folder in ("entities", "edges/train"):
                root = f"{available.uri}/work-{copies}/{folder}"
                written = [each for each in storage.list_dir(root, recursive=True) if not each.is_dir]
                assert len(written) > 1
                for each in written:
                    local = tmp_path / "out" / folder / each.uri.removeprefix(f"{root}/")
                    assert storage.read_bytes(each.uri) == local.read_bytes()
    raw = TableConfig(path=("t.parquet",), lhs="id", rhs="other", relation="to")
    write_parquet(tmp_path / "t.parquet", id=["a"], other=["b"])
    with storage.atomic_output(f"{available.uri}/t.parquet") as stream:
        stream.write((tmp_path / "t.parquet").read_bytes())
    for _ in range(2):
        available.tell("stop-datanode 0")  # of those that are left
    with pytest.raises(StorageError, match=r"t\.parquet: cannot read: .*DataNodes"):  # no bad input
        find_ranges(raw, plain_file(f"{available.uri}/t.parquet"), 100)
