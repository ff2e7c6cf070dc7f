"""Steps 3 and 4: encoded edges -> edges by bucket, chunk by chunk -> bucket files.

Translating replaces the chunk's numbers by indices, and sorts the edges by bucket: integers only. The
sort is stable and buckets are filled in the order of the chunks, so edges keep the order of the raw rows.

    {chunk}.edges.i32   starts int64 [splits x buckets + 1], then the edges as records int32 [N, 3 or 4]:
                        rel, lhs, rhs (, weight: the bits of a float32)
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from etl import spill
from etl.encode_edges import Chunk
from etl.index_entities import relation_rows_uri, rows_uri
from etl.layout import Layout
from etl.spill import Int32, Int64
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket, Side

# Closing a file on HDFS waits half a second for its datanode: these waits overlap.
_NUM_WRITERS = 8


@dataclass(frozen=True)
class Run:
    """Adjacent buckets of one split that one task writes."""

    split: str
    buckets: list[Bucket]
    flat: range
    """Their numbers among all buckets of all splits."""
    num_edges: list[int]


def translate(
    layout: Layout, chunk: Chunk, ranges: list[list[tuple[int, int]]], first_relation: int
) -> Int64:
    """Sort one chunk's edges by bucket; the number of edges of each bucket of each split.

    Args:
        layout: the run's shape.
        chunk: the chunk.
        ranges: for each part, the chunk's (offset, count) pairs in the part's rows file.
        first_relation: the chunk's offset in the relations' rows file.
    """
    codes = spill.read_batches(f"{chunk.uri}.codes.arrow")
    column = {name: codes[name].to_numpy() for name in codes.column_names}
    index_of = _index_of(layout, ranges)
    if layout.dynamic:
        numbers = spill.read_ranges(relation_rows_uri(layout), [(first_relation, chunk.num_relations)])[0]
        column["rel"] = numbers[column["rel"]]
    slices = {}
    for side in Side:
        slice_N = _slice_of(layout, chunk, side)[column[side]]
        if layout.spreads:
            spread_N = layout.spread(column["edge_hash"], side)
            slice_N = np.where(slice_N < 0, spread_N, slice_N)
        slices[side] = slice_N
    bucket_N = (column["split"].astype(np.int64) * layout.grid.lhs + slices[Side.LHS]) * layout.grid.rhs
    bucket_N += slices[Side.RHS]
    num_all = len(layout.splits) * layout.num_buckets
    # numpy sorts 16-bit integers by radix, several times faster.
    order = np.argsort(bucket_N.astype(np.uint16 if num_all <= 1 << 16 else np.uint32), kind="stable")
    records = np.empty((len(order), _width(layout)), np.int32)
    records[:, 0] = column["rel"][order]
    records[:, 1] = index_of[column["lhs"][order]]
    records[:, 2] = index_of[column["rhs"][order]]
    if layout.weighted:
        records[:, 3] = column["weight"][order].view(np.int32)
    num_edges = np.bincount(bucket_N, minlength=num_all)
    spill.write_sorted_edges(f"{chunk.uri}.edges.i32", np.concatenate([[0], np.cumsum(num_edges)]), records)
    return num_edges


def plan_runs(layout: Layout, num_edges: Int64) -> list[Run]:
    """The tasks that write all buckets: within one row of the grid, within the memory of a task.

    Args:
        layout: the run's shape.
        num_edges: [splits x buckets] edges of each bucket.
    """
    most = layout.merge_bytes // (4 * _width(layout))
    runs: list[Run] = []
    buckets = [(split, bucket) for split in layout.splits for bucket in layout.buckets()]
    for number, ((split, bucket), count) in enumerate(zip(buckets, num_edges.tolist(), strict=True)):
        run = runs[-1] if runs else None
        if run and bucket.rhs > 0 and sum(run.num_edges) + count <= most:
            runs[-1] = Run(
                split, [*run.buckets, bucket], range(run.flat.start, number + 1), [*run.num_edges, count]
            )
        else:
            runs.append(Run(split, [bucket], range(number, number + 1), [count]))
    return runs


def merge(layout: Layout, run: Run, chunk_uris: list[str]) -> None:
    """Write the bucket files of one run from the chunks that have edges for it."""
    if len(run.buckets) == 1:  # maybe larger than memory: piece by piece
        pieces = (records for _, records in _read(layout, run, chunk_uris))
        _write(layout, run, 0, pieces)
        return
    chunks = list(_read(layout, run, chunk_uris))

    def write(number: int) -> None:
        _write(layout, run, number, (rec[starts[number] : starts[number + 1]] for starts, rec in chunks))

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        list(pool.map(write, range(len(run.buckets))))


def _read(layout: Layout, run: Run, chunk_uris: list[str]) -> Iterator[tuple[Int64, Int32]]:
    num_all = len(layout.splits) * layout.num_buckets
    for uri in chunk_uris:
        yield spill.read_sorted_edges(f"{uri}.edges.i32", run.flat, num_all, _width(layout))


def _write(layout: Layout, run: Run, number: int, pieces: Iterable[Int32]) -> None:
    with edge_buckets.new_bucket(
        layout.split_uris[run.split], run.buckets[number], run.num_edges[number], weighted=layout.weighted
    ) as writer:
        for records in pieces:
            rel, lhs, rhs, *weight = np.ascontiguousarray(records.T)
            writer.append(Edges(lhs, rel, rhs, weight[0].view(np.float32) if weight else None))


def _width(layout: Layout) -> int:
    return 4 if layout.weighted else 3


def _index_of(layout: Layout, ranges: list[list[tuple[int, int]]]) -> Int32:
    """Index, in its partition, of each of the chunk's ids."""
    tables = [np.zeros(0, np.int32)]
    for part, part_ranges in zip(layout.parts(), ranges, strict=True):
        if part_ranges:
            tables += spill.read_ranges(rows_uri(layout, part), part_ranges)
    return np.concatenate(tables)


def _slice_of(layout: Layout, chunk: Chunk, side: Side) -> Int32:
    """Slice of the side's grid that each of the chunk's ids lies in; -1: spread over all of them."""
    num_slices = layout.grid.lhs if side is Side.LHS else layout.grid.rhs
    slices = [
        part.partition if layout.num_partitions[part.entity_type] == num_slices else -1
        for part in layout.parts()
    ]
    return np.repeat(np.array(slices, np.int32), chunk.num_ids.sum(axis=1))
