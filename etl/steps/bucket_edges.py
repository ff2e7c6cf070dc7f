"""Steps 3 and 4: encoded edges -> edges by bucket, chunk by chunk -> bucket files.

Translating replaces the chunk's numbers by indices, leaves out edges of rare ids and relations, and sorts
the rest by bucket: integers only. The sort is stable and buckets are filled in the order of the chunks, so
edges keep the order of the raw rows.

    {chunk}.edges.i32             starts int64 [splits x buckets + 1], then the edges as records int32 [N, W]:
                                  rel, lhs, rhs, weight (the bits of a float32) if there are weights, and
                                  number of features a featurized side; lhs or rhs is -1 where there are some
    {chunk}.{side}_edges.i32      the same, of the features: records int32 [M, 1]
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.steps import spill
from etl.steps.duplicates import first_of_equals
from etl.steps.encode_edges import Chunk, read_features
from etl.steps.index_entities import MAX_COUNTED_RELATIONS, relation_rows_uri
from etl.steps.index_shard import Shard, rows_uri
from etl.steps.layout import Layout
from etl.steps.spill import Int32, Int64
from etl.strings.native import NOWHERE, count, group, take
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.storage import Checksums
from graphmill.vocab import Bucket, Side

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8
_WEIGHT_AT = 3

Reader = Callable[[], Iterable[tuple[Int32, dict[Side, Int32]]]]


@dataclass(frozen=True, eq=False)
class Numbering:
    """What translating a chunk needs to know of the indices."""

    shards: list[Shard]
    first_indices: list[int]
    """Index of the first new id of each shard."""
    ranges: Int64
    """[shards, 2] offset and count of the chunk's ids in each shard's rows file."""
    first_relation: int
    """Offset of the chunk's names in the relations' rows file."""
    num_relations: int
    rare_relations: list[int]
    """Static relations that are left out."""


@dataclass(frozen=True, eq=False)
class Translated:
    """Counts of a translated chunk."""

    num_edges: Int32
    """[splits x buckets]."""
    num_features: dict[Side, Int64]
    """[splits x buckets] features of each featurized side."""
    relation_counts: Int64
    """[relations] edges of each; of none, where relations are too many to tell."""
    num_rare_relation: int
    num_rare_entity: int


@dataclass(frozen=True)
class Run:
    """Adjacent buckets of one split that one task writes."""

    split: str
    buckets: list[Bucket]
    flat: range
    """Their numbers among all buckets of all splits."""
    num_edges: list[int]
    num_features: dict[Side, list[int]]


@dataclass(frozen=True)
class Merged:
    """Edges of each bucket of a run, and the checksums of their files."""

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
        """Records of one bucket, and the features of its edges."""
        return self.records[self.starts[number] : self.starts[number + 1]], {
            side: self.features[side][starts[number] : starts[number + 1]]
            for side, starts in self.feature_starts.items()
        }


def translate(layout: Layout, chunk: Chunk, numbering: Numbering) -> Translated:
    """Sort one chunk's edges by bucket."""
    codes = spill.read_batches(f"{chunk.uri}.codes.arrow")
    column = {name: codes[name].to_numpy() for name in codes.column_names}
    index_of = _index_of(layout, numbering)
    rel_N = column["rel"]
    if layout.dynamic:
        names = [(numbering.first_relation, chunk.num_relations)]
        rel_N = spill.read_ranges(relation_rows_uri(layout), names)[0][rel_N]
    elif numbering.rare_relations:
        rel_N = np.where(np.isin(rel_N, numbering.rare_relations), np.int32(-1), rel_N)
    index_N = {side: _of_codes(index_of, column[side]) for side in Side}
    known_N = rel_N >= 0
    kept_N = known_N.copy()
    if layout.filters:
        for side in Side:
            kept_N &= (index_N[side] >= 0) | (column[side] < 0)
    bucket_N = _bucket_of(layout, chunk, column)
    bucket_N[~kept_N] = NOWHERE
    columns = [rel_N, index_N[Side.LHS], index_N[Side.RHS]]
    if layout.weighted:
        columns.append(column["weight"].view(np.int32))
    none_N = np.zeros(len(rel_N), np.int32)
    columns += [column.get(f"{side}_features", none_N) for side in layout.feature_sides]
    num_all = len(layout.splits) * layout.num_buckets
    starts, records = group(columns, bucket_N, num_all)
    num_features = {
        side: _translate_features(layout, chunk, side, index_of, column, bucket_N)
        for side in layout.feature_sides
    }
    spill.write_sorted_edges(f"{chunk.uri}.edges.i32", starts, records, layout.keeping)
    few = numbering.num_relations <= MAX_COUNTED_RELATIONS
    return Translated(
        np.diff(starts).astype(np.int32),
        num_features,
        count(records[:, 0].copy(), numbering.num_relations) if few else np.zeros(0, np.int64),
        int((~known_N).sum()),
        int((known_N & ~kept_N).sum()),
    )


def _translate_features(
    layout: Layout, chunk: Chunk, side: Side, index_of: Int32, column: dict[str, Any], bucket_N: Int32
) -> Int64:
    """Write the features of one side in the order of the edges; how many each bucket has."""
    num_all = len(layout.splits) * layout.num_buckets
    order = np.argsort(bucket_N, kind="stable")
    order = order[bucket_N[order] != NOWHERE]
    counts_N = np.zeros(len(bucket_N), np.int64)
    name = f"{side}_features"
    if name in column:
        counts_N = column[name].astype(np.int64)
    counts = counts_N[order]
    first = (np.cumsum(counts_N) - counts_N)[order]
    # For every feature in the new order: its place in the old one.
    places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    features = np.zeros(0, np.int32)
    if name in column:
        features = index_of[read_features(chunk.uri, side, int(counts_N.sum()))[places]]
    num_features = np.bincount(bucket_N[order], counts, minlength=num_all).astype(np.int64)
    spill.write_sorted_edges(
        _features_uri(chunk.uri, side), _starts(num_features), features[:, None], layout.keeping
    )
    return num_features


def plan_runs(layout: Layout, num_edges: Int64, num_features: dict[Side, Int64]) -> list[Run]:
    """The tasks that write all buckets: within one row of the grid, within the memory of a task.

    Args:
        layout: the run's shape.
        num_edges: [splits x buckets] edges of each bucket.
        num_features: [splits x buckets] features of each featurized side.
    """
    sizes = num_edges * (4 * _width(layout)) + sum(4 * counts for counts in num_features.values())
    flats: list[range] = []
    used = 0
    for number, size in enumerate(sizes.tolist()):
        if number % layout.grid.rhs and used + size <= layout.merge_bytes:
            flats[-1] = range(flats[-1].start, number + 1)
        else:
            flats.append(range(number, number + 1))
            used = 0
        used += size
    buckets = [(split, bucket) for split in layout.splits for bucket in layout.buckets()]
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


def merge(layout: Layout, run: Run, chunk_uris: list[str]) -> Merged:
    """Write the bucket files of one run from the chunks that have edges for it."""
    checksums: Checksums = {}
    if len(run.buckets) == 1:  # maybe larger than memory: piece by piece
        read = partial(_read, layout, run, chunk_uris)
        num_edges = _write(layout, run, 0, lambda: (each.bucket(0) for each in read()), checksums)
        return Merged([num_edges], checksums)
    pieces = list(_read(layout, run, chunk_uris))

    def write(number: int) -> int:
        return _write(layout, run, number, lambda: (each.bucket(number) for each in pieces), checksums)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return Merged(list(pool.map(write, range(len(run.buckets)))), checksums)


def _read(layout: Layout, run: Run, chunk_uris: list[str]) -> Iterator[_Piece]:
    num_all = len(layout.splits) * layout.num_buckets
    for uri in chunk_uris:
        edges = spill.read_sorted_edges(f"{uri}.edges.i32", run.flat, num_all, _width(layout))
        found = {
            side: spill.read_sorted_edges(_features_uri(uri, side), run.flat, num_all, 1)
            for side in layout.feature_sides
        }
        yield _Piece(
            *edges,
            {side: starts for side, (starts, _) in found.items()},
            {side: records[:, 0] for side, (_, records) in found.items()},
        )


def _write(layout: Layout, run: Run, number: int, read: Reader, checksums: Checksums) -> int:
    """Write one bucket, read anew as often as is needed; its number of edges."""
    num_edges = run.num_edges[number]
    keep_N = None
    if layout.drops_duplicates:
        budget = layout.merge_bytes // (4 * _width(layout))
        keep_N = first_of_equals(lambda: (records[:, :3] for records, _ in read()), num_edges, budget)
        num_edges = int(keep_N.sum())
    with edge_buckets.new_bucket(
        layout.folders.splits[run.split],
        run.buckets[number],
        num_edges,
        weighted=layout.weighted,
        num_features={side: counts[number] for side, counts in run.num_features.items()},
        checksums=checksums,
    ) as writer:
        start = 0
        for records, features in read():
            stop = start + len(records)
            kept = records if keep_N is None else records[keep_N[start:stop]]
            writer.append(_edges(layout, kept, features))
            start = stop
    return num_edges


def _edges(layout: Layout, records: Int32, features: dict[Side, Int32]) -> Edges:
    columns = np.ascontiguousarray(records.T)
    rel, lhs, rhs = columns[:3]
    lists = {
        side: Features(_starts(columns[_features_at(layout, side)]), indices)
        for side, indices in features.items()
    }
    weight = columns[_WEIGHT_AT].view(np.float32) if layout.weighted else None
    return Edges(lhs, rel, rhs, weight, lists.get(Side.LHS), lists.get(Side.RHS))


def _starts(counts: npt.NDArray[np.integer]) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _width(layout: Layout) -> int:
    return _WEIGHT_AT + layout.weighted + len(layout.feature_sides)


def _features_at(layout: Layout, side: Side) -> int:
    """Place of the side's number of features in a record."""
    return _WEIGHT_AT + layout.weighted + layout.feature_sides.index(side)


def _features_uri(uri: str, side: Side) -> str:
    return f"{uri}.{side}_edges.i32"


def _index_of(layout: Layout, numbering: Numbering) -> Int32:
    """Index, in its partition, of each of the chunk's ids; -1: left out."""
    tables = [np.zeros(0, np.int32)]
    for shard, first, (offset, num_ids) in zip(
        numbering.shards, numbering.first_indices, numbering.ranges.tolist(), strict=True
    ):
        if num_ids:
            rows = spill.read_ranges(rows_uri(layout, shard), [(offset, num_ids)])[0]
            tables.append(np.where(rows >= 0, rows + np.int32(first), np.int32(-2) - rows))
    return np.concatenate(tables)


def _of_codes(index_of: Int32, code_N: Int32) -> Int32:
    """Index of each code; -1 for the code -1, which stands for a list of features."""
    return take(np.append(index_of, np.int32(-1)), code_N)


def _bucket_of(layout: Layout, chunk: Chunk, column: dict[str, Any]) -> Int32:
    """Number of each edge's bucket among those of all splits."""
    bucket_N: Int32 = column["split"].astype(np.int32)
    for side, num_slices in zip(Side, layout.grid, strict=True):
        bucket_N *= np.int32(num_slices)
        if num_slices > 1:
            slice_N = take(_slice_of(layout, chunk, side), column[side])
            if layout.spreads:
                slice_N = np.where(slice_N < 0, layout.spread(column["edge_hash"], side), slice_N)
            bucket_N += slice_N.astype(np.int32, copy=False)
    return bucket_N


def _slice_of(layout: Layout, chunk: Chunk, side: Side) -> Int32:
    """Slice of the side's grid that each of the chunk's ids lies in; -1: spread over all of them.

    The last entry is that of lists of features, whose types have one partition.
    """
    num_slices = layout.grid.lhs if side is Side.LHS else layout.grid.rhs
    slices = [
        part.partition if layout.num_partitions[part.entity_type] == num_slices else -1
        for part in layout.parts()
    ]
    num_ids = [int(chunk.num_ids[slots.start : slots.stop].sum()) for slots in layout.part_slots()]
    return np.append(np.repeat(np.array(slices, np.int32), num_ids), np.int32(-1))
