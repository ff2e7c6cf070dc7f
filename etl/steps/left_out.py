"""Rows of a bucket that are no edges because of other rows."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from etl.strings import hashing
from graphmill.storage.as_json import Int32


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
