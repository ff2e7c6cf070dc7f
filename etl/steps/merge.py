"""Step 4: sorted edges of all chunks, edges of an earlier run -> bucket files.

Each task writes a run of adjacent buckets.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from etl.steps import exchange
from etl.steps.bucket_rows import BucketRows, EarlierIds, KeptRows, Records
from etl.steps.degrees import Degrees, check_indices
from etl.steps.exchange import Exchange, Piece
from etl.steps.index_previous import Renumbering
from etl.steps.left_out import Bools, RemovedEdges, find_edges, taken_out
from etl.steps.spill import Shared
from etl.steps.task_settings import TaskSettings
from etl.strings.native import add_counts
from etl.tables.blocks import ranges_within
from graphmill import storage
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import BucketWriter, Edges, bucket_uri
from graphmill.formats.edge_buckets.features import Features
from graphmill.formats.edge_buckets.files import REMOVED
from graphmill.formats.edge_buckets.origins import BucketOrigins, open_all_rows
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

_REMOVED_ROW_BYTES = 128  # of a candidate: its record, its marks, and a sort

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8


@dataclass(frozen=True)
class SortedRun:
    """Adjacent buckets of one split, written by one task."""

    flat: range
    """Numbers of the buckets among all buckets of all splits."""
    num_edges: list[int]
    """Edges of each bucket that come from the chunks."""
    num_features: dict[Side, list[int]]


@dataclass(frozen=True, eq=False)
class MergePlan:
    """Values that all tasks of the step share."""

    settings: TaskSettings
    edges: list[Exchange]
    """From chunks to runs: of the edges, then of the features of each featurized side."""
    earlier: EarlierIds | None
    num_relations: int
    """Relations whose rows are counted."""
    removing: list[int]
    """Numbers of the files whose rows take out edges."""


@dataclass(frozen=True, eq=False)
class Merged:
    """Result of the step, or of one of its runs."""

    num_rows: Int64
    """[buckets] edges, and rows that were left out as duplicates; of all runs [splits x buckets]."""
    num_edges: Int64
    """[buckets] as written."""
    relation_counts: Int64
    """[relations] rows of each relation, if edges of an earlier run were taken over."""
    checksums: Checksums
    """Checksums of the bucket files."""
    degrees: list[Degrees] | None = None
    """By partition, if edges of an earlier run were taken over: chunks then have the new edges only."""


def plan_runs(
    settings: TaskSettings,
    num_edges: Int64,
    num_records: Int64,
    num_features: dict[Side, Int64],
    earlier_bytes: Int64 | None,
) -> list[SortedRun]:
    """Cut all buckets into runs within one row of the grid and within the memory of a task.

    Counts are [splits x buckets]: edges, edges and heads, which say their files, and features of featurized
    sides. `earlier_bytes` are those of the earlier buckets.
    """
    sizes = 4 * (num_records * len(settings.record_fields) + sum(num_features.values()))
    if earlier_bytes is not None:
        sizes = sizes + earlier_bytes
    rows = range(0, len(sizes), settings.grid.rhs)
    flats = [
        range(row + flat.start, row + flat.stop)
        for row in rows
        for flat in ranges_within(sizes[row : row + rows.step].tolist(), settings.etl.merge_bytes)
    ]
    return [
        SortedRun(
            flat,
            num_edges[flat.start : flat.stop].tolist(),
            {side: counts[flat.start : flat.stop].tolist() for side, counts in num_features.items()},
        )
        for flat in flats
    ]


def earlier_bytes(settings: TaskSettings, earlier: EarlierIds) -> Int64:
    """Return the sizes of the earlier buckets: int64 [splits x buckets]."""
    sizes: dict[str, int] = {}
    for split in settings.splits:
        listed = storage.list_dir(storage.join(earlier.edge_root, split))
        sizes |= {entry.uri: entry.size_bytes for entry in listed}
    places = map(settings.bucket_at, range(settings.num_split_buckets))
    uris = [bucket_uri(storage.join(earlier.edge_root, split), bucket) for split, bucket in places]
    return np.array([sizes.get(uri, 0) for uri in uris], np.int64)


def merge(shared: Shared[MergePlan], number: int, run: SortedRun) -> Merged:
    """Write the bucket files of one run, which has this number among all runs."""
    plan = shared.read()
    checksums: Checksums = {}
    removing = frozenset(plan.removing)
    renumbering = Renumbering(plan.settings)
    # A single bucket may be larger than memory: its chunks are read one by one, on every pass.
    loaded = list(_pieces(plan, number)) if len(run.flat) > 1 else None

    def write(place: int) -> tuple[int, int, Int64]:
        def read() -> Iterator[Records]:
            for of_chunk in loaded if loaded is not None else _pieces(plan, number):
                edges, *features = (
                    np.frombuffer(content[starts[place] : starts[place + 1]], np.int32)
                    for starts, content in of_chunk
                )
                yield [edges.reshape(-1, len(plan.settings.record_fields)), *features]

        with _kept_rows(plan, run.flat[place], renumbering) as kept:
            return _write(plan, run, place, BucketRows(read, kept, removing), checksums)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        num_rows, num_edges, relation_counts = zip(*pool.map(write, range(len(run.flat))), strict=True)
    return Merged(np.array(num_rows), np.array(num_edges), np.sum(relation_counts, axis=0), checksums)


@contextmanager
def _kept_rows(plan: MergePlan, flat: int, renumbering: Renumbering) -> Iterator[KeptRows | None]:
    if plan.earlier is None:
        yield None
        return
    split, bucket = plan.settings.bucket_at(flat)
    fields = plan.settings.record_fields
    with open_all_rows(storage.join(plan.earlier.edge_root, split), bucket, fields) as rows:
        renumber = partial(renumbering.apply, bucket=bucket, uri=rows.uri)
        yield KeptRows.of(rows, plan.earlier.numbers, fields, renumber)


def _pieces(plan: MergePlan, number: int) -> Iterator[tuple[Piece, ...]]:
    """Read a run from each chunk: its edges, and the features of each featurized side."""
    return zip(*(exchange.pieces(edge, number) for edge in plan.edges), strict=True)


def _write(
    plan: MergePlan, run: SortedRun, place: int, rows: BucketRows, checksums: Checksums
) -> tuple[int, int, Int64]:
    """Write one bucket; return its rows, its edges, and the rows of each relation."""
    settings = plan.settings
    num_rows = run.num_edges[place] + (int(rows.kept.counts.sum()) if rows.kept else 0)
    is_edge_N = None
    if settings.compares:
        budget = settings.etl.merge_bytes // (4 * len(settings.record_fields))
        drops = settings.etl.duplicates == "drop"
        is_edge_N = find_edges(
            lambda: ((piece.records[:, :3], piece.removes) for piece in rows.read()),
            num_rows,
            budget,
            drops=drops,
        )
        num_rows = len(is_edge_N)
    num_edges = num_rows if is_edge_N is None else int(is_edge_N.sum())
    relation_counts = np.zeros(plan.num_relations, np.int64)
    split, bucket = settings.bucket_at(run.flat[place])
    removed = None
    if rows.kept is not None and split == TRAIN_SPLIT:
        max_rows = settings.etl.merge_bytes // (_REMOVED_ROW_BYTES * min(len(run.flat), _NUM_WRITERS))
        removed = RemovedEdges(_candidates(settings, rows, is_edge_N, max_rows), max_rows)
    with edge_buckets.new_bucket(
        settings.folders.splits[split],
        bucket,
        num_edges,
        weighted=settings.weighted,
        num_features={side: counts[place] for side, counts in run.num_features.items()},
        num_left_out=None if is_edge_N is None else num_rows - num_edges,
        checksums=checksums,
    ) as writer:
        start = 0
        for records, features, removes, _ in rows.read():
            if removes:
                continue
            stop = start + len(records)
            is_edge_n = None if is_edge_N is None else is_edge_N[start:stop]
            _append(settings, writer, records, features, is_edge_n, start)
            if removed is not None:
                removed.look_at(records if is_edge_n is None else records[is_edge_n])
            if plan.num_relations:
                # edges that were removed do not count, duplicates do, where nothing is removed
                counted = records[is_edge_n] if settings.removes else records
                rel = counted[:, 0].copy()
                check_indices(rel, plan.num_relations, "rel", writer.uri)
                add_counts(rel, relation_counts)
            start = stop
        writer.origins = _origins(*rows.files(), is_edge_N)
    if removed is not None:
        _write_removed(settings.folders.splits[split], bucket, removed.removed(), checksums)
    return num_rows, num_edges, relation_counts


def _candidates(
    settings: TaskSettings, rows: BucketRows, is_edge_N: Bools | None, max_rows: int
) -> Iterator[Int32]:
    """Yield edges of the earlier bucket that this run may have removed."""
    if rows.kept is not None:
        yield from rows.kept.read_gone(max_rows)
        if settings.removes and is_edge_N is not None:
            yield from taken_out(rows.read(), rows.kept.rows, is_edge_N)


def _write_removed(edge_path: str, bucket: Bucket, removed: Int32, checksums: Checksums) -> None:
    if len(removed):
        rel, lhs, rhs = np.ascontiguousarray(removed.T)
        with edge_buckets.new_bucket(
            edge_path, bucket, len(removed), checksums=checksums, kind=REMOVED
        ) as writer:
            writer.append(Edges(lhs, rel, rhs))


def _append(
    settings: TaskSettings,
    writer: BucketWriter,
    records: Int32,
    features: list[Int32],
    is_edge_n: Bools | None,
    start: int,
) -> None:
    if is_edge_n is None or is_edge_n.all():
        writer.append(_edges(settings, records, features))
        return
    writer.append(_edges(settings, records[is_edge_n], features))
    writer.append_left_out(
        _edges(settings, records[~is_edge_n], features), start + np.flatnonzero(~is_edge_n)
    )


def _origins(numbers: Int32, counts: Int64, is_edge_N: Bools | None) -> BucketOrigins:
    """Return where the rows of each file begin, among the edges and among those that were left out."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if is_edge_N is None or not len(counts):
        return BucketOrigins(numbers, starts, np.zeros_like(starts))
    num_edges = np.add.reduceat(is_edge_N, starts[:-1], dtype=np.int64)
    edge_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_edges)])
    return BucketOrigins(numbers, edge_starts, starts - edge_starts)


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
