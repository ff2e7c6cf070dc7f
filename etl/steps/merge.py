"""Step 4: sorted edges of all chunks -> bucket files, each task a run of adjacent buckets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from etl.steps import exchange
from etl.steps.exchange import Exchange, Piece
from etl.steps.shared import Shared
from etl.steps.task_settings import TaskSettings
from etl.strings import hashing
from etl.tables.blocks import ranges_within
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import Side

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8

Records = list[Int32]
"""Records [n, W] of the edges of a bucket from one chunk; then [m] the features of each featurized side."""


@dataclass(frozen=True)
class Run:
    """Adjacent buckets of one split, written by one task."""

    flat: range
    """Numbers of the buckets among all buckets of all splits."""
    num_edges: list[int]
    num_features: dict[Side, list[int]]


@dataclass(frozen=True, eq=False)
class MergePlan:
    """Values that all tasks of the step share."""

    settings: TaskSettings
    edges: list[Exchange]
    """From chunks to runs: of the edges, then of the features of each featurized side."""


def plan_runs(settings: TaskSettings, num_edges: Int64, num_features: dict[Side, Int64]) -> list[Run]:
    """Cut all buckets into runs within one row of the grid and within the memory of a task.

    `num_edges` and `num_features` [splits x buckets] count the edges, and the features of featurized sides.
    """
    sizes = 4 * (num_edges * len(settings.record_fields) + sum(num_features.values()))
    rows = range(0, len(sizes), settings.grid.rhs)
    flats = [
        range(row + flat.start, row + flat.stop)
        for row in rows
        for flat in ranges_within(sizes[row : row + rows.step].tolist(), settings.etl.merge_bytes)
    ]
    return [
        Run(
            flat,
            num_edges[flat.start : flat.stop].tolist(),
            {side: counts[flat.start : flat.stop].tolist() for side, counts in num_features.items()},
        )
        for flat in flats
    ]


def run_bounds(runs: Sequence[Run]) -> Int64:
    """Return the first bucket of each run, and the number of all buckets."""
    return np.array([0, *(run.flat.stop for run in runs)], np.int64)


def merge(shared: Shared[MergePlan], number: int, run: Run) -> tuple[list[int], Checksums]:
    """Write the bucket files of one run, which has this number among all runs.

    Returns:
        the number of edges of each bucket, and the checksums of the files.
    """
    plan = shared.read()
    checksums: Checksums = {}
    # A single bucket may be larger than memory: its chunks are read one by one, on every pass.
    loaded = list(_pieces(plan, number)) if len(run.flat) > 1 else None

    def write(place: int) -> int:
        def read() -> Iterator[Records]:
            for of_chunk in loaded or _pieces(plan, number):
                edges, *features = (_values(piece, place) for piece in of_chunk)
                yield [edges.reshape(-1, len(plan.settings.record_fields)), *features]

        return _write(plan.settings, run, place, read, checksums)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return list(pool.map(write, range(len(run.flat)))), checksums


def _pieces(plan: MergePlan, number: int) -> Iterator[tuple[Piece, ...]]:
    """Read a run from each chunk: its edges, and the features of each featurized side."""
    return zip(*(exchange.pieces(each, number) for each in plan.edges), strict=True)


def _values(piece: Piece, place: int) -> Int32:
    starts, content = piece
    return np.frombuffer(content[starts[place] : starts[place + 1]], np.int32)


def _write(
    settings: TaskSettings,
    run: Run,
    number: int,
    read: Callable[[], Iterable[Records]],
    checksums: Checksums,
) -> int:
    """Write one bucket, which may be read several times; return its number of edges."""
    num_edges = run.num_edges[number]
    keep_N = None
    if settings.etl.duplicates == "drop":
        budget = settings.etl.merge_bytes // (4 * len(settings.record_fields))
        keep_N = first_of_equals(lambda: (records[:, :3] for records, *_ in read()), num_edges, budget)
        num_edges = int(keep_N.sum())
    split, bucket = settings.bucket_at(run.flat[number])
    with edge_buckets.new_bucket(
        settings.folders.splits[split],
        bucket,
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
        lists[side] = Features(starts, indices)
    weight = column["weight"].view(np.float32) if settings.weighted else None
    return Edges(
        column["lhs"], column["rel"], column["rhs"], weight, lists.get(Side.LHS), lists.get(Side.RHS)
    )


def first_of_equals(
    read: Callable[[], Iterable[Int32]], num_edges: int, budget_edges: int
) -> npt.NDArray[np.bool_]:
    """Return a mask [num_edges] of the edges of a bucket without an equal edge before them.

    `read` yields records [n, 3] of relation, lhs, rhs. A bucket of more than about `budget_edges` edges is
    read several times; each pass compares the edges of one range of hashes.
    """
    keep_N = np.ones(num_edges, bool)
    num_passes = max(-(-num_edges // max(budget_edges, 1)), 1)
    for number in range(num_passes):
        rows, records, start = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int32)], 0
        for piece in read():
            mine = np.arange(len(piece)) if num_passes == 1 else _of_pass(piece, number, num_passes)
            rows.append(mine + start)
            records.append(piece[mine])
            start += len(piece)
        row_M, record_M3 = np.concatenate(rows), np.concatenate(records)
        order = np.lexsort(record_M3.T)  # stable: equal edges stay in the order of their rows
        ordered = record_M3[order]
        repeats = (ordered[1:] == ordered[:-1]).all(axis=1)
        keep_N[row_M[order[1:][repeats]]] = False
    return keep_N


def _of_pass(records: Int32, number: int, num_passes: int) -> npt.NDArray[np.int64]:
    """Return the rows of the edges to compare in this pass."""
    columns = records.astype(np.uint64).T
    hashes = hashing.mix(hashing.mix(columns[0] ^ (columns[1] << np.uint64(32))) ^ columns[2])
    return np.flatnonzero(hashing.scale(hashes, num_passes) == number)
