"""Step 4: sorted edges of all chunks -> bucket files, each task a run of adjacent buckets."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from etl.steps import spill
from etl.steps.merge_duplicates import first_of_equals
from etl.steps.spill import Int32, Int64
from etl.steps.task_settings import TaskSettings
from etl.steps.translate import features_uri
from etl.tables.blocks import ranges_within
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.storage import Checksums
from graphmill.vocab import Bucket, Side

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8

Piece = list[tuple[Int64, Int32]]
"""Edges of a run of buckets from one chunk: starts of the buckets, and records; then the same of the features
of each featurized side."""


@dataclass(frozen=True)
class Run:
    """Adjacent buckets of one split, written by one task."""

    split: str
    buckets: list[Bucket]
    flat: range
    """Numbers of the buckets among all buckets of all splits."""
    num_edges: list[int]
    num_features: dict[Side, list[int]]


@dataclass(frozen=True)
class Merged:
    """Edges per bucket of a run, and the checksums of the bucket files."""

    num_edges: list[int]
    checksums: Checksums


def plan_runs(settings: TaskSettings, num_edges: Int64, num_features: dict[Side, Int64]) -> list[Run]:
    """Cut all buckets into runs within one row of the grid and within the memory of a task.

    Args:
        settings: settings of the run.
        num_edges: [splits x buckets] edges per bucket.
        num_features: [splits x buckets] features per featurized side.
    """
    sizes = num_edges * (4 * len(settings.record_fields)) + sum(
        4 * counts for counts in num_features.values()
    )
    flats = [
        range(row + flat.start, row + flat.stop)
        for row in range(0, len(sizes), settings.grid.rhs)
        for flat in ranges_within(sizes[row : row + settings.grid.rhs].tolist(), settings.etl.merge_bytes)
    ]
    buckets = [(split, bucket) for split in settings.splits for bucket in settings.buckets()]
    return [
        Run(
            buckets[flat.start][0],
            [buckets[number][1] for number in flat],
            flat,
            num_edges[flat.start : flat.stop].tolist(),
            {side: counts[flat.start : flat.stop].tolist() for side, counts in num_features.items()},
        )
        for flat in flats
    ]


def merge(settings: TaskSettings, run: Run, chunk_uris: list[str]) -> Merged:
    """Write the bucket files of one run from the chunks that have edges for it."""
    checksums: Checksums = {}
    # A single bucket may be larger than memory: its chunks are read one by one, each time anew.
    loaded = list(_read(settings, run, chunk_uris)) if len(run.buckets) > 1 else None

    def write(number: int) -> int:
        def read() -> Iterator[list[Int32]]:
            for piece in loaded or _read(settings, run, chunk_uris):
                yield [records[starts[number] : starts[number + 1]] for starts, records in piece]

        return _write(settings, run, number, read, checksums)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return Merged(list(pool.map(write, range(len(run.buckets)))), checksums)


def _read(settings: TaskSettings, run: Run, chunk_uris: list[str]) -> Iterator[Piece]:
    for uri in chunk_uris:
        widths = {f"{uri}.edges.i32": len(settings.record_fields)}
        widths |= {features_uri(uri, side): 1 for side in settings.feature_sides}
        yield [
            spill.read_sorted_edges(file_uri, run.flat, settings.num_split_buckets, width)
            for file_uri, width in widths.items()
        ]


def _write(
    settings: TaskSettings,
    run: Run,
    number: int,
    read: Callable[[], Iterable[list[Int32]]],
    checksums: Checksums,
) -> int:
    """Write one bucket, which may be read several times; return its number of edges."""
    num_edges = run.num_edges[number]
    keep_N = None
    if settings.etl.duplicates == "drop":
        budget = settings.etl.merge_bytes // (4 * len(settings.record_fields))
        keep_N = first_of_equals(lambda: (records[:, :3] for records, *_ in read()), num_edges, budget)
        num_edges = int(keep_N.sum())
    with edge_buckets.new_bucket(
        settings.folders.splits[run.split],
        run.buckets[number],
        num_edges,
        weighted=settings.weighted,
        num_features={side: counts[number] for side, counts in run.num_features.items()},
        checksums=checksums,
    ) as writer:
        start = 0
        for records, *features in read():
            stop = start + len(records)
            kept = records if keep_N is None else records[keep_N[start:stop]]
            writer.append(_edges(settings, kept, features))
            start = stop
    return num_edges


def _edges(settings: TaskSettings, records: Int32, features: list[Int32]) -> Edges:
    column = dict(zip(settings.record_fields, np.ascontiguousarray(records.T), strict=True))
    lists: dict[Side, Features] = {}
    for side, indices in zip(settings.feature_sides, features, strict=True):
        starts = np.concatenate([[0], np.cumsum(column[f"{side}_features"], dtype=np.int64)])
        lists[side] = Features(starts, indices[:, 0])
    weight = column["weight"].view(np.float32) if settings.weighted else None
    return Edges(
        column["lhs"], column["rel"], column["rhs"], weight, lists.get(Side.LHS), lists.get(Side.RHS)
    )
