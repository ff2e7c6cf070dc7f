"""Rows of a bucket that are no edges because of other rows: removed edges, and duplicates.

An edge is removed if an equal row of a table that removes comes after it. Of the equal edges that remain, all
but the first are duplicates.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from etl.strings import hashing
from graphmill.storage.as_json import Int32, Int64

Bools = npt.NDArray[np.bool_]


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
    hashes = hashing.mix(hashing.mix(columns[0] ^ (columns[1] << np.uint64(32))) ^ columns[2])
    return np.flatnonzero(hashing.scale(hashes, num_passes) == number)
