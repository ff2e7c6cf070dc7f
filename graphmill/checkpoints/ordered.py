"""Rows with integer ids, stored in any order and read in the order of their ids.

If every piece of a table is sorted by id, the pieces are merged during reading. Otherwise the rows are
first sorted into a temporary file of the table's size. The rows are never all in memory.

Shapes: N rows of a table, D dimension.
"""

import bisect
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.checkpoints.checkpoint import BATCH_BYTES, Floats, ReadRows, Rows, rows_of_batch
from graphmill.errors import FormatError

Numbers = npt.NDArray[np.int64]


class OrderedPiece(NamedTuple):
    """Some rows of a table, with functions that read the ids and the values of rows [start, stop)."""

    num_rows: int
    ids: Callable[[int, int], Any]
    values: Callable[[int, int], Any]

    def read_ids(self, start: int, stop: int) -> Numbers:
        """Ids of rows [start, stop) of the piece, int64 [n]."""
        return np.asarray(self.ids(start, stop), np.int64).reshape(-1)

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) of the piece, float32 [n, D]."""
        return np.asarray(self.values(start, stop), np.float32).reshape(stop - start, -1)


def sliced(ids: Numbers, start: int, stop: int) -> Numbers:
    """Ids of rows [start, stop), where they are in memory."""
    return ids[start:stop]


class OrderedTable:
    """A table with rows in the order of ids: row k has id k."""

    def __init__(
        self,
        open_pieces: Callable[[], AbstractContextManager[Sequence[OrderedPiece]]],
        shape: tuple[int, int],
        where: str,
        *,
        leaves_out: bool = False,
        hint: str = "",
    ) -> None:
        """Describe the table.

        Args:
            open_pieces: opens the pieces.
            shape: (N, D) of all pieces together, without rows that are left out.
            where: name of the table in messages.
            leaves_out: rows with negative ids are left out.
            hint: what to do about ids that are not 0 to N - 1, for the message.
        """
        self.shape, self._leaves_out, self._hint = shape, leaves_out, hint
        self._open_pieces, self._where = open_pieces, where
        self._is_sorted: bool | None = None
        self._copy: Rows | None = None  # its file goes with it

    @contextmanager
    def open(self) -> Iterator[Rows]:
        """Open the rows, for reading within the block."""
        if self._copy is not None:
            yield self._copy
            return
        with self._open_pieces() as pieces:
            if self._is_sorted is None:
                self._is_sorted = not self._leaves_out and _is_sorted(
                    pieces, self.shape[0], self._where, self._hint
                )
            if not self._is_sorted:
                self._copy = _sorted_copy(pieces, self.shape, self._where)
            yield self._copy or _Merged(pieces, self.shape, self._where)


def _is_sorted(pieces: Sequence[OrderedPiece], count: int, where: str, hint: str) -> bool:
    batch_rows = BATCH_BYTES // 8
    is_sorted = True
    for piece in pieces:
        last = -1
        for start in range(0, piece.num_rows, batch_rows):
            ids = piece.read_ids(start, min(start + batch_rows, piece.num_rows))
            _check_range(ids, count, where, hint)
            is_sorted = is_sorted and int(ids[0]) > last and bool((np.diff(ids) > 0).all())
            last = int(ids[-1])
    return is_sorted


def _check_range(ids: Numbers, count: int, where: str, hint: str) -> None:
    outside = ids[(ids < 0) | (ids >= count)]
    if len(outside):
        raise FormatError(
            f"{where}: id {int(outside[0])} among {count} rows: expected the ids 0 to {count - 1}, each once"
            + hint
        )


class _Merged:
    def __init__(self, pieces: Sequence[OrderedPiece], shape: tuple[int, int], where: str) -> None:
        self.shape, self._pieces, self._where = shape, pieces, where
        self._next = (0, [0] * len(pieces))  # the next id, and its position in each piece

    def read(self, start: int, stop: int) -> Floats:
        reached, positions = self._next
        if reached != start:
            positions = [_position(piece, start) for piece in self._pieces]
        rows = np.empty((stop - start, self.shape[1]), np.float32)
        is_read = np.zeros(stop - start, bool)
        ends = []
        for piece, first in zip(self._pieces, positions, strict=True):
            ids = piece.read_ids(first, min(first + stop - start, piece.num_rows))
            ids = ids[: np.searchsorted(ids, stop)] - start
            ends.append(first + len(ids))
            if 0 < len(ids) == len(rows) and not is_read.any():
                rows = piece.read(first, first + len(ids))  # sorted and complete: no copy
                is_read[:] = True
            elif len(ids):
                rows[ids] = piece.read(first, first + len(ids))
                is_read[ids] = True
        self._next = stop, ends
        num_read = sum(ends) - sum(positions)
        _check_all_read(is_read, num_read, start, self._where)
        return rows


def _position(piece: OrderedPiece, wanted: int) -> int:
    """The first row of a sorted piece whose id is at least `wanted`."""
    return bisect.bisect_left(
        range(piece.num_rows), wanted, key=lambda row: int(piece.read_ids(row, row + 1)[0])
    )


def _sorted_copy(pieces: Sequence[OrderedPiece], shape: tuple[int, int], where: str) -> Rows:
    copy = mapped_array(shape, np.float32)
    is_read = np.zeros(shape[0], bool)
    num_read = 0
    batch_rows = rows_of_batch(shape[1])
    for piece in pieces:
        for start in range(0, piece.num_rows, batch_rows):
            stop = min(start + batch_rows, piece.num_rows)
            ids = piece.read_ids(start, stop)
            rows, is_kept = piece.read(start, stop), ids >= 0
            if not is_kept.all():
                ids, rows = ids[is_kept], rows[is_kept]
            copy[ids] = rows
            is_read[ids] = True
            num_read += len(ids)
    _check_all_read(is_read, num_read, 0, where)
    return ReadRows(shape, lambda start, stop: np.array(copy[start:stop]))


def mapped_array(shape: tuple[int, ...], dtype: npt.DTypeLike, folder: str | None = None) -> npt.NDArray[Any]:
    """Make an array in a mapped temporary file, in `folder` or where temporary files are."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="graphmill-", dir=folder) as file:
        # A full disk is an error here. Without reserved space, a write to the map would kill the process.
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(dtype).itemsize)
        return np.memmap(file, dtype, "r+", shape=shape)


def _check_all_read(is_read: npt.NDArray[np.bool_], num_read: int, first_id: int, where: str) -> None:
    if num_read == len(is_read) and is_read.all():
        return
    missing = np.flatnonzero(~is_read)
    mistake = f"id {first_id + int(missing[0])} is missing" if len(missing) else "an id occurs twice"
    raise FormatError(f"{where}: {mistake}: expected every id from 0 on once")
