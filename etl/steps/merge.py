"""Step 4: sorted edges of all chunks -> bucket files, each task a run of adjacent buckets."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from etl.steps import spill
from etl.steps.merge_duplicates import first_of_equals
from etl.steps.spill import Int32, Int64
from etl.steps.task_settings import TaskSettings
from etl.steps.translate import features_uri, starts_of
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.storage import Checksums
from graphmill.vocab import Bucket, Side

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8
_WEIGHT_AT = 3  # position of the weight in a record

Reader = Callable[[], Iterable[tuple[Int32, dict[Side, Int32]]]]


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


@dataclass(frozen=True, eq=False)
class _Piece:
    """Edges of a run of buckets from one chunk, bucket by bucket."""

    starts: Int64
    records: Int32
    feature_starts: dict[Side, Int64]
    features: dict[Side, Int32]

    def bucket(self, number: int) -> tuple[Int32, dict[Side, Int32]]:
        """Return the records of one bucket, and the features of its edges."""
        return self.records[self.starts[number] : self.starts[number + 1]], {
            side: self.features[side][starts[number] : starts[number + 1]]
            for side, starts in self.feature_starts.items()
        }


def plan_runs(settings: TaskSettings, num_edges: Int64, num_features: dict[Side, Int64]) -> list[Run]:
    """Cut all buckets into runs within one row of the grid and within the memory of a task.

    Args:
        settings: settings of the run.
        num_edges: [splits x buckets] edges per bucket.
        num_features: [splits x buckets] features per featurized side.
    """
    sizes = num_edges * (4 * _width(settings)) + sum(4 * counts for counts in num_features.values())
    flats: list[range] = []
    used = 0
    for number, size in enumerate(sizes.tolist()):
        if number % settings.grid.rhs and used + size <= settings.merge_bytes:
            flats[-1] = range(flats[-1].start, number + 1)
        else:
            flats.append(range(number, number + 1))
            used = 0
        used += size
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
    if len(run.buckets) == 1:  # may be larger than memory: read chunk by chunk
        read = partial(_read, settings, run, chunk_uris)
        num_edges = _write(settings, run, 0, lambda: (each.bucket(0) for each in read()), checksums)
        return Merged([num_edges], checksums)
    pieces = list(_read(settings, run, chunk_uris))

    def write(number: int) -> int:
        return _write(settings, run, number, lambda: (each.bucket(number) for each in pieces), checksums)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return Merged(list(pool.map(write, range(len(run.buckets)))), checksums)


def _read(settings: TaskSettings, run: Run, chunk_uris: list[str]) -> Iterator[_Piece]:
    num_all = len(settings.splits) * settings.num_buckets
    for uri in chunk_uris:
        edges = spill.read_sorted_edges(f"{uri}.edges.i32", run.flat, num_all, _width(settings))
        found = {
            side: spill.read_sorted_edges(features_uri(uri, side), run.flat, num_all, 1)
            for side in settings.feature_sides
        }
        yield _Piece(
            *edges,
            {side: starts for side, (starts, _) in found.items()},
            {side: records[:, 0] for side, (_, records) in found.items()},
        )


def _write(settings: TaskSettings, run: Run, number: int, read: Reader, checksums: Checksums) -> int:
    """Write one bucket, which may be read several times; return its number of edges."""
    num_edges = run.num_edges[number]
    keep_N = None
    if settings.drops_duplicates:
        budget = settings.merge_bytes // (4 * _width(settings))
        keep_N = first_of_equals(lambda: (records[:, :3] for records, _ in read()), num_edges, budget)
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
        for records, features in read():
            stop = start + len(records)
            kept = records if keep_N is None else records[keep_N[start:stop]]
            writer.append(_edges(settings, kept, features))
            start = stop
    return num_edges


def _edges(settings: TaskSettings, records: Int32, features: dict[Side, Int32]) -> Edges:
    columns = np.ascontiguousarray(records.T)
    rel, lhs, rhs = columns[:3]
    lists = {
        side: Features(starts_of(columns[_features_at(settings, side)]), indices)
        for side, indices in features.items()
    }
    weight = columns[_WEIGHT_AT].view(np.float32) if settings.weighted else None
    return Edges(lhs, rel, rhs, weight, lists.get(Side.LHS), lists.get(Side.RHS))


def _width(settings: TaskSettings) -> int:
    return _WEIGHT_AT + settings.weighted + len(settings.feature_sides)


def _features_at(settings: TaskSettings, side: Side) -> int:
    """BlockPosition of the side's number of features in a record."""
    return _WEIGHT_AT + settings.weighted + settings.feature_sides.index(side)
