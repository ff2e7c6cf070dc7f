"""Calls of HDFS's namenode and bytes for Dask's scheduler: counted on small runs, planned for large ones.

The model takes the numbers of chunks, shards and buckets that the code plans, and counts calls. A real
namenode's own counters show, on runs of several sizes, that it is an upper bound. Then the same model counts
a run of 10 billion edges.
"""

import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client

from etl.steps import exchange, index, merge
from etl.steps.chunks import EdgeChunk, cut_types
from etl.steps.encode import encode_ranges
from etl.steps.exchange import Exchange
from etl.steps.index_shard import IndexPlan, index_shard
from etl.steps.spill import Shared, Tracked
from etl.steps.task_settings import Folders, TaskSettings
from etl.steps.translate import TranslatePlan, translate
from etl.tables.formats import FileRange
from etl.tables.ranges import grouped
from graphmill import config as configuration
from graphmill.config.sections.etl import EtlConfig
from tests.etl.graphs import config_of, write_parquet
from tests.etl.run.test_go_on import figures_of
from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.files import upload

READ = 1  # getBlockLocations
WRITE = 4  # create, addBlock, complete, rename
DELETE = 1
OF_AN_INPUT = 12  # its size for the fingerprint, its columns, its rows
OF_EVERY_RUN = 500  # checks and locks, the journal, manifests, renames of folders
LISTING_ROWS = 1000  # of dfs.ls.limit


@dataclass(frozen=True)
class Size:
    """Numbers of files and tasks of a run."""

    inputs: int
    chunks: int
    shards: int
    runs: int
    partitions: int
    buckets: int
    processes: int = 1
    max_opens: int = exchange.MAX_OPENS


def exchanges(size: Size) -> Iterator[Exchange]:
    for name, sources, targets in (
        ("ids", size.chunks, size.shards),
        ("rows", size.shards, size.chunks),
        ("edges", size.chunks, size.runs),
    ):
        yield exchange.plan("f", name, ["s"] * sources, np.arange(targets + 1), size.max_opens)


def num_opens(planned: Exchange) -> int:
    if not planned.blocks:
        return len(planned.sources) * planned.num_targets
    return len(planned.sources) * planned.num_ranges + planned.num_targets * planned.num_groups


def planned_calls(size: Size) -> dict[str, int]:
    """Calls of the namenode, by what they are for."""
    blocks = sum(len(each.blocks) for each in exchanges(size))
    return {
        "inputs": OF_AN_INPUT * size.inputs,
        "pieces": READ * sum(map(num_opens, exchanges(size))),
        "combined": (WRITE + DELETE) * blocks,
        "chunks": (3 * WRITE + READ + 2 * DELETE) * size.chunks,  # ids, codes, edges
        "shards": (2 * (WRITE + DELETE) + READ) * size.shards,  # new ids, rows
        "partitions": (2 * WRITE + READ) * size.partitions,
        "buckets": WRITE * size.buckets,
        "shared": 7 * (WRITE + READ * size.processes),
        "listings": 12 * math.ceil((size.buckets + 2 * size.partitions) / LISTING_ROWS),
        "run": OF_EVERY_RUN,
    }


class Counting(Client):
    """A client that adds up the bytes of its tasks."""

    num_bytes: Counter[str]

    def submit(self, function: Any, *args: Any, **options: Any) -> Any:
        name = function.__name__
        self.num_bytes[name] = max(self.num_bytes[name], task_bytes(function, *args))
        return super().submit(function, *args, **options)


def task_bytes(function: Any, *args: Any) -> int:
    return len(pickle.dumps((function, args)))


def namenode_calls(hdfs: MiniHdfs) -> Counter[str]:
    """All calls of clients since HDFS began, by name."""
    counts = Counter[str]()
    for line in hdfs.tell("calls"):
        name, _, count = line.partition(" ")
        is_of_datanodes = name.startswith(("Overall", "SendHeartbeat", "Block", "RegisterDatanode"))
        if name.endswith("NumOps") and not is_of_datanodes:
            counts[name.removesuffix("NumOps")] = int(count)
    # Asked once more where the datanode's report is late; and answers, which are no calls.
    counts["Complete"] = min(counts["Complete"], counts["Create"])
    return Counter({name: count for name, count in counts.items() if not name.endswith("Exception")})


@pytest.mark.hdfs
@pytest.mark.slow
def test_small_runs_take_no_more_calls_than_planned(hdfs, tmp_path, hdfs_uri, rng):
    for number in range(8):
        lhs, rhs = ([f"u{n}" for n in ids] for ids in rng.integers(0, 400, (2, 300)))
        write_parquet(tmp_path / f"{number}.parquet", 300, l=lhs, t=rhs)
    upload(tmp_path, f"{hdfs_uri}/raw")
    with Counting(processes=False, n_workers=1, threads_per_worker=4, dashboard_address=":0") as client:
        for chunk_rows, index_bytes, max_opens in ((300, 1 << 20, 10**6), (30, 15_000, 300)):
            etl = {"chunk_rows": chunk_rows, "index_bytes": index_bytes, "max_opens": max_opens}
            place = f"{hdfs_uri}/out-{chunk_rows}"
            config = config_of(place, f"{hdfs_uri}/raw", entities={"n": 4}, **etl, merge_bytes=1_000)
            client.num_bytes = Counter()
            before = namenode_calls(hdfs)
            figures, num_tasks = figures_of(config, client)
            calls = sum((namenode_calls(hdfs) - before).values())
            size = Size(
                inputs=8,
                chunks=figures["num_chunks"],
                shards=int(num_tasks["etl: index entities"]),
                runs=int(num_tasks["etl: write buckets"]),
                partitions=4,
                buckets=16,
                max_opens=max_opens,
            )
            planned = sum(planned_calls(size).values())
            assert calls <= planned
            assert calls > planned - 8 * OF_AN_INPUT - OF_EVERY_RUN
    assert size.chunks == 80  # the last: enough for tasks to share files, and to combine them
    given = (shared(TranslatePlan, "translate"), 79, EdgeChunk("000079-000000", 30), 0)
    assert client.num_bytes["translate"] <= task_bytes(Tracked(translate), *given) + len(hdfs_uri)


WORK = "hdfs://namenode/user/someone/.etl-work-0123456789ab/files-0123456789ab"
PLACES = "hdfs://namenode/user/someone/graph"


def shared(kind: type[Any], name: str) -> Shared[Any]:
    return Shared(kind, uri=f"{WORK}/{name}.shared")


def test_a_large_run_takes_few_calls_and_small_arguments(tmp_path: Path) -> None:
    """A tenth as many ids, 10,000 files, no setting but the tables; 100 workers of 8 cores and 32 GiB."""
    content = {
        "output": PLACES,
        "entities": {"node": {}},
        "relations": [{"name": "to", "lhs": "node", "rhs": "node"}],
        "etl": {"tables": [{"path": "hdfs://namenode/edges", "lhs": "l", "rhs": "r", "relation": "to"}]},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(content))
    config = configuration.load(str(tmp_path / "config.yaml"))
    etl = config.section(EtlConfig)
    num_edges, num_files, num_ids = 10**10, 10_000, 10**9
    of_file: dict[str, Any] = {
        "paths": {"lhs": ("l",), "rhs": ("r",)},
        "types": dict.fromkeys("lr", pa.string()),
    }
    of_file |= {"cut": (0, 1), "num_rows": num_edges // num_files, "num_bytes": 24 * num_edges // num_files}
    ranges = [
        FileRange(etl.tables[0], f"hdfs://namenode/edges/part-{number:06d}.parquet", **of_file)
        for number in range(num_files)
    ]
    groups = grouped(ranges, 800, etl.chunk_rows)
    settings = TaskSettings.of(config, Folders(WORK, PLACES, {"train": PLACES}), 2 * num_edges)
    smallest = {"node": np.array([number * 2**64 // num_ids for number in range(1, 1025)], np.uint64)}
    settings = settings.cut(cut_types(config, settings, smallest, 32 << 30))
    num_slots, num_buckets = settings.first_slots[-1], settings.num_split_buckets
    in_slots = np.full(num_slots, 2 * num_edges // num_slots)  # at worst, no chunk has an id twice
    shards = index.plan_shards(settings, in_slots, 16 * in_slots)
    in_buckets = np.full(num_buckets, num_edges // num_buckets)
    runs = merge.plan_runs(settings, in_buckets, in_buckets, {}, None)
    size = Size(
        num_files, len(groups), len(shards), len(runs), len(settings.partitions), num_buckets, processes=800
    )
    assert sum(planned_calls(size).values()) < 1_700_000, planned_calls(size)
    assert all(shard.num_passes == 1 for shard in shards)

    chunk = EdgeChunk("000000-000000", 2_000_000)
    files = [("tables[0]", etl.tables[0], each.uri) for each in ranges]
    tasks = {
        "plan": len(files) * task_bytes(Tracked(len), files[:1], etl.chunk_rows),
        "encode": sum(
            task_bytes(Tracked(encode_ranges), shared(TaskSettings, "encode"), group, number)
            for number, group in enumerate(groups)
        ),
        "index": len(shards) * task_bytes(Tracked(index_shard), shared(IndexPlan, "index"), len(shards)),
        "partitions": len(settings.partitions)
        * task_bytes(Tracked(index.write_partition), settings, shards[:1])
        + task_bytes(shards),
        "translate": len(groups)
        * task_bytes(Tracked(translate), shared(TranslatePlan, "translate"), 1, chunk, 0),
        "merge": sum(
            task_bytes(Tracked(merge.merge), shared(merge.MergePlan, "merge"), 1, run) for run in runs
        ),
        "combine": sum(len(each.blocks) for each in exchanges(size))
        * task_bytes(exchange.combine, shared(Exchange, "exchange-ids"), (1, 1), etl),
    }
    assert sum(tasks.values()) < 50_000_000, tasks
