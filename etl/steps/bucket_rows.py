"""All rows of a bucket in the order of the raw files: those of new chunks, and those of an earlier bucket.

The order is that of a run which reads all files anew. Rows come in pieces: a bucket may be larger than
memory. Heads are records before the edges of a bucket from one chunk, which say the raw files of the edges. A
head is as wide as an edge, so that both are in one section of one file:

    rel     minus the number of heads of the section: an edge has 0 or more there
    lhs     number of the file
    rhs     its edges in the section
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from etl.strings.native import NOWHERE, count
from graphmill.formats.edge_buckets.origins import AllRows
from graphmill.sorted_arrays import joined_ranges
from graphmill.storage.as_json import Int32, Int64

Records = list[Int32]
"""Records [n, W] of the edges of a bucket from one chunk; then [m] the features of each featurized side."""

_PIECE_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class EarlierIds:
    """Buckets of an earlier run, from which a run takes the edges of files that both have."""

    edge_root: str
    """Folder with a folder of buckets for each split."""
    numbers: Int32
    """[files of the earlier run] number of each file in this run; -1: this run does not have it."""


Renumber = Callable[..., Int32]
"""Gives records of an earlier bucket their indices of this run; drops=True leaves forgotten ids out."""


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of an earlier bucket, from files that this run has too and from files that are gone."""

    rows: AllRows
    fields: list[str]
    numbers: Int32
    """[K] numbers of the files in this run, ascending."""
    first: Int64
    """[K] position of the first row of each file in the earlier bucket."""
    past: Int64
    """[K] position past its last row."""
    gone: Int64
    """[G, 2] first and past the last edge of each file that this run does not have."""
    renumber: Renumber | None = None

    @classmethod
    def of(
        cls, rows: AllRows, number_of: Int32, fields: list[str], renumber: Renumber | None = None
    ) -> "KeptRows":
        """Choose rows; `number_of` gives the present number of each of the earlier run's files, or -1."""
        number_R = number_of[rows.origins.origin]
        order = np.argsort(number_R, kind="stable")
        order = order[number_R[order] >= 0]
        starts, stops = rows.starts[:-1][order], rows.starts[1:][order]
        ends = np.stack([rows.origins.starts[:-1], rows.origins.starts[1:]], axis=1)
        return cls(rows, fields, number_R[order], starts, stops, ends[number_R < 0], renumber)

    @property
    def counts(self) -> Int64:
        """[K] rows of each file."""
        return self.past - self.first

    def read(self, start: int, stop: int) -> Iterator["RowsOfBucket"]:
        """Read the rows of the chosen files [start, stop), as records of `fields`."""
        for begin, end in joined_ranges(self.first[start:stop], self.past[start:stop]).tolist():
            for at in range(begin, end, _PIECE_ROWS):
                past_piece = min(at + _PIECE_ROWS, end)
                yield RowsOfBucket(self._records(at, past_piece), [], earlier_row=at)

    def read_gone(self, max_rows: int) -> Iterator[Int32]:
        """Read at most `max_rows` edges of files that are gone, without forgotten ids: records [n, 3]."""
        for first, past in self.gone.tolist():
            for at in range(first, min(past, first + max_rows), _PIECE_ROWS):
                ends = at, min(at + _PIECE_ROWS, past, first + max_rows)
                names = ("rel", "lhs", "rhs")
                records = np.stack([self.rows.read_edges(*ends, name, np.int32) for name in names], axis=1)
                yield records if self.renumber is None else self.renumber(records, drops=True)
            max_rows -= min(past - first, max_rows)

    def _records(self, start: int, stop: int) -> Int32:
        columns = np.empty((len(self.fields), stop - start), np.int32)  # as they are written again
        for number, name in enumerate(self.fields):
            dtype = np.float32 if name == "weight" else np.int32
            columns[number] = self.rows.read(start, stop, name, dtype).view(np.int32)
        return columns.T if self.renumber is None else self.renumber(columns.T)


class RowsOfBucket(NamedTuple):
    """Some rows of a bucket."""

    records: Int32
    features: list[Int32]
    """[m] of each featurized side."""
    removes: bool = False
    """Whether they are no edges, but take out edges; they are not written."""
    earlier_row: int | None = None
    """Position of the first of them in the earlier bucket, if they come from there."""


@dataclass(eq=False)
class BucketRows:
    """All rows of a bucket; they can be read several times."""

    pieces: Callable[[], Iterable[Records]]
    """Reads the sections of all chunks, which begin with their heads."""
    kept: KeptRows | None
    removing: frozenset[int]
    """Numbers of the files whose rows take out edges."""
    _numbers: list[Int32] = field(default_factory=list)
    _counts: list[Int64] = field(default_factory=list)

    def read(self) -> Iterator[RowsOfBucket]:
        """Read all rows, in pieces."""
        self._numbers.clear()
        self._counts.clear()
        num_read = 0
        for section, *features in self.pieces():
            numbers, counts, edges = split_heads(section)
            removes = len(numbers) > 0 and int(numbers[0]) in self.removing  # a chunk is of one table
            if not removes:
                self._numbers.append(numbers)
                self._counts.append(counts)
            if self.kept is None:
                yield RowsOfBucket(edges, features, removes)
                continue
            before = np.searchsorted(self.kept.numbers, numbers)
            starts = np.cumsum(counts) - counts
            # the chunk's files before which rows of the earlier bucket come
            cuts = np.flatnonzero(np.diff(before, prepend=num_read)).tolist()
            at = 0
            for cut in cuts:
                if starts[cut] > at:
                    yield RowsOfBucket(edges[at : starts[cut]], [], removes)
                yield from self.kept.read(num_read, int(before[cut]))
                num_read, at = int(before[cut]), int(starts[cut])
            yield RowsOfBucket(edges[at:], [], removes)
        if self.kept is not None:
            yield from self.kept.read(num_read, len(self.kept.numbers))

    def files(self) -> tuple[Int32, Int64]:
        """Return the files of the written rows, ascending, and the rows of each; call this after reading."""
        numbers, counts = [np.zeros(0, np.int32), *self._numbers], [np.zeros(0, np.int64), *self._counts]
        if self.kept is not None:
            numbers.append(self.kept.numbers)
            counts.append(self.kept.counts)
        distinct, places = np.unique(np.concatenate(numbers), return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, places, np.concatenate(counts))
        return distinct[sums > 0].astype(np.int32), sums[sums > 0]


def heads_of(files: Sequence[tuple[int, int]], bucket_N: Int32, num_buckets: int, width: int) -> Int32:
    """Return heads for the edges of a chunk, bucket by bucket: int32 [H, 1 + width], the bucket first.

    `files` has number and edges of each file, in the order of the edges; `bucket_N` is each edge's bucket.
    """
    buckets, numbers, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    start = 0
    for number, num_edges in files:
        of_file, num_of_file = _count_buckets(bucket_N[start : start + num_edges], num_buckets)
        buckets.append(of_file)
        numbers.append(np.full(len(of_file), number, np.int64))
        counts.append(num_of_file)
        start += num_edges
    bucket_H = np.concatenate(buckets)
    order = np.argsort(bucket_H, kind="stable")
    heads = np.zeros((len(order), 1 + width), np.int32)
    heads[:, 0] = bucket_H[order]
    heads[:, 1] = -np.bincount(bucket_H, minlength=num_buckets)[heads[:, 0]]
    heads[:, 2] = np.concatenate(numbers)[order]
    heads[:, 3] = np.concatenate(counts)[order]
    return heads


def _count_buckets(bucket_N: Int32, num_buckets: int) -> tuple[Int64, Int64]:
    """Return the buckets of some edges, ascending, and the edges of each."""
    if len(bucket_N) < num_buckets:
        there, counts = np.unique(bucket_N[bucket_N != NOWHERE], return_counts=True)
        return there.astype(np.int64), counts.astype(np.int64)
    all_counts = count(bucket_N, num_buckets)
    some = np.flatnonzero(all_counts)
    return some, all_counts[some]


def split_heads(records: Int32) -> tuple[Int32, Int64, Int32]:
    """Cut the section of a chunk: numbers of files [F], edges of each [F], and the edges [N, W]."""
    num_heads = -int(records[0, 0]) if len(records) and records[0, 0] < 0 else 0
    heads = records[:num_heads]
    return heads[:, 1], heads[:, 2].astype(np.int64), records[num_heads:]
