"""Rows of a bucket that are no edges because of other rows: removed edges, and duplicates.

An edge is removed if an equal row of a table that removes comes after it. Of the equal edges that remain, all
but the first are duplicates.

Edges of an earlier bucket that this run's bucket does not have: train moves their ends apart again. They are
of files that this run does not have, or a table takes them out (`removes`), and no other row of the bucket is
equal. At most `max_rows` are looked at, so that they fit in memory.

Shapes: N rows of a bucket, M candidates.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from etl.steps.bucket_rows import RowsOfBucket
from graphmill.formats.edge_buckets.origins import AllRows
from graphmill.formats.murmur import mix, scale
from graphmill.storage.as_json import Int32, Int64

Bools = npt.NDArray[np.bool_]
# odd, of two hashes: sums of products whose upper bits are a place
_FACTORS = np.array([[0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35], [0x27D4EB2F, 0x165667B1, 0xD3A2646D]], np.uint32)
_PLACES_PER_ROW = 16
_MOST_BITS = 26
_PIECE_ROWS = 1 << 20


def find_edges(
    read: Callable[[], Iterable[tuple[Int32, bool]]], num_rows: int, budget_rows: int, *, drops: bool
) -> Bools:
    """Return a mask of the rows of a bucket that are edges; rows that take out edges are not in the mask.

    `read` yields records [n, 3] of relation, lhs, rhs, and whether they take out edges. With `drops`, only
    the first of equal edges is an edge. A bucket of more than about `budget_rows` rows is read several times;
    each pass compares the rows of one range of hashes.
    """
    num_stored = 0
    is_edge_N = np.ones(num_rows, bool)
    num_passes = max(-(-num_rows // max(budget_rows, 1)), 1)
    for number in range(num_passes):
        # place of each row among those that are stored; -1: it takes out edges
        places, records, num_stored = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int32)], 0
        for piece, removes in read():
            mine = np.arange(len(piece)) if num_passes == 1 else _of_pass(piece, number, num_passes)
            places.append(np.full(len(mine), -1) if removes else mine + num_stored)
            records.append(piece[mine])
            num_stored += 0 if removes else len(piece)
        place_M, record_M3 = np.concatenate(places), np.concatenate(records)
        order = np.lexsort(record_M3.T)  # stable: equal rows stay in their order
        left_out = _left_out(record_M3[order], place_M[order] < 0, drops=drops)
        is_edge_N[place_M[order[left_out]]] = False
    return is_edge_N[:num_stored]


def _left_out(ordered: Int32, removes_M: Bools, *, drops: bool) -> Bools:
    """Return a mask of sorted rows: duplicates and removed edges, but not the rows that remove."""
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(is_first)
    is_gone = np.zeros(len(ordered), bool)
    at: Int64 = np.arange(len(ordered))
    if removes_M.any():
        last = np.maximum.reduceat(np.where(removes_M, at, -1), starts)
        is_gone = at < np.repeat(last, np.diff(starts, append=len(ordered)))
    remains = ~(is_gone | removes_M)
    if drops and len(starts):
        first = np.minimum.reduceat(np.where(remains, at, len(ordered)), starts)
        is_gone |= remains & (at != np.repeat(first, np.diff(starts, append=len(ordered))))
    return is_gone & ~removes_M


def _of_pass(records: Int32, number: int, num_passes: int) -> npt.NDArray[np.int64]:
    columns = records.astype(np.uint64).T
    hashes = mix(mix(columns[0] ^ (columns[1] << np.uint64(32))) ^ columns[2])
    return np.flatnonzero(scale(hashes, num_passes) == number)


class RemovedEdges:
    """Finds out which candidates, edges of an earlier run, a bucket no longer has."""

    def __init__(self, candidates: Iterable[Int32], max_rows: int) -> None:
        """`candidates` are records [n, 3] of relation, lhs, rhs."""
        kept, num = [np.zeros((0, 3), np.int32)], 0
        for candidate in candidates:
            kept.append(candidate[: max_rows - num])
            if (num := num + len(kept[-1])) == max_rows:
                break
        self._candidate_M3: Int32 = np.concatenate(kept)
        bits = int(np.clip((_PLACES_PER_ROW * num).bit_length(), 10, _MOST_BITS))
        self._shift = np.uint32(32 - bits)
        self._is_named = np.zeros((len(_FACTORS), 1 << bits), bool)
        for number, is_named in enumerate(self._is_named):
            is_named[self._places(self._candidate_M3, number)] = True
        self._equal: list[Int32] = []

    def look_at(self, edges: Int32) -> None:
        """Note which candidates are among some edges of the bucket, records [n, 3 or more]."""
        if len(self._candidate_M3):
            for number, is_named in enumerate(self._is_named):  # the second looks at few
                edges = edges[np.flatnonzero(is_named[self._places(edges, number)]), :3]
            self._equal.append(edges)
            if sum(map(len, self._equal)) > len(self._candidate_M3) + _PIECE_ROWS:  # the same edges again
                self._equal = [np.unique(np.concatenate(self._equal), axis=0)]

    def removed(self) -> Int32:
        """Return the distinct candidates, in their order, that no edge was equal to: [K, 3]."""
        num = len(self._candidate_M3)
        pieces = [(self._candidate_M3, False), *((edges, True) for edges in self._equal)]
        is_removed_M = find_edges(lambda: pieces, num, num, drops=True)
        return self._candidate_M3[is_removed_M]

    def _places(self, edges: Int32, number: int) -> npt.NDArray[np.uint32]:
        """Positions of edges in a table of marks, by hash: equal edges share one, others rarely do."""
        mixed = np.zeros(len(edges), np.uint32)
        for column, factor in enumerate(_FACTORS[number]):
            mixed += edges[:, column].view(np.uint32) * factor
        mixed >>= self._shift
        return mixed


def taken_out(pieces: Iterable[RowsOfBucket], earlier: AllRows, is_edge_N: Bools) -> Iterable[Int32]:
    """Yield edges of the earlier bucket that this bucket no longer has; `pieces` are all rows of it."""
    start = 0
    for piece in pieces:
        if piece.removes:
            continue
        num = len(piece.records)
        if (row := piece.earlier_row) is not None:
            yield piece.records[earlier.are_edges(row, row + num) & ~is_edge_N[start : start + num], :3]
        start += num
