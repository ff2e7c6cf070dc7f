"""Rows with integer ids, stored in any order and read in the order of their ids.

If every piece of a table is sorted by id, the pieces are merged during reading. Otherwise the rows are
first sorted into a temporary file of the table's size. The rows are never all in memory.

Shapes: N rows of a table, D dimension.
"""

import bisect
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from graphmill.checkpoints.checkpoint import BATCH_BYTES, Floats, Rows
from graphmill.errors import FormatError

Numbers = npt.NDArray[np.int64]


class Piece(Protocol):
    """Some rows of a table, with their ids."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    def read_ids(self, start: int, stop: int) -> Numbers:
        """Ids of rows [start, stop) of the piece."""

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) of the piece, float32 [n, D]."""


class OrderedTable:
    """A table whose rows are read in the order of ids: row k has id k."""

    def __init__(
        self,
        open_pieces: Callable[[], AbstractContextManager[Sequence[Piece]]],
        shape: tuple[int, int],
        where: str,
    ) -> None:
        """`shape` is (N, D) of all pieces together; `where` is for messages."""
        self.shape = shape
        self._open_pieces, self._where = open_pieces, where
        self._is_sorted: bool | None = None
        self._copy: _SortedCopy | None = None

    @contextmanager
    def open(self) -> Iterator[Rows]:
        """The rows, to be read within the block.

        Raises:
            FormatError: an id is not one of 0 to N - 1; or, during reading, an id is missing or occurs twice.
        """
        if self._copy is not None:
            yield self._copy
            return
        with self._open_pieces() as pieces:
            if self._is_sorted is None:
                self._is_sorted = _is_sorted(pieces, self.shape[0], self._where)
            if not self._is_sorted:
                self._copy = _sorted_copy(pieces, self.shape, self._where)
            yield self._copy or _Merged(pieces, self.shape, self._where)


def _is_sorted(pieces: Sequence[Piece], count: int, where: str) -> bool:
    batch_rows = BATCH_BYTES // 8
    is_sorted = True
    for piece in pieces:
        last = -1
        for start in range(0, piece.num_rows, batch_rows):
            ids = piece.read_ids(start, min(start + batch_rows, piece.num_rows))
            _check_range(ids, count, where)
            is_sorted = is_sorted and int(ids[0]) > last and bool((np.diff(ids) > 0).all())
            last = int(ids[-1])
    return is_sorted


def _check_range(ids: Numbers, count: int, where: str) -> None:
    outside = ids[(ids < 0) | (ids >= count)]
    if len(outside):
        raise FormatError(
            f"{where}: id {int(outside[0])} among {count} rows: expected the ids 0 to {count - 1}, each once"
        )


class _Merged:
    """Pieces that are sorted by id."""

    def __init__(self, pieces: Sequence[Piece], shape: tuple[int, int], where: str) -> None:
        self.shape, self._pieces, self._where = shape, pieces, where
        self._next = (0, [0] * len(pieces))  # the next id, and its position in each piece

    def read(self, start: int, stop: int) -> Floats:
        reached, positions = self._next
        if reached != start:
            positions = [_position(piece, start) for piece in self._pieces]
        rows = np.empty((stop - start, self.shape[1]), np.float32)
        found = np.zeros(stop - start, bool)
        ends = []
        for piece, first in zip(self._pieces, positions, strict=True):
            ids = piece.read_ids(first, min(first + stop - start, piece.num_rows))
            ids = ids[: np.searchsorted(ids, stop)] - start
            ends.append(first + len(ids))
            if 0 < len(ids) == len(rows) and not found.any():
                rows = piece.read(first, first + len(ids))  # sorted and complete: no copy
                found[:] = True
            elif len(ids):
                rows[ids] = piece.read(first, first + len(ids))
                found[ids] = True
        self._next = stop, ends
        num_read = sum(ends) - sum(positions)
        _check_found(found, num_read, start, self._where)
        return rows


def _position(piece: Piece, wanted: int) -> int:
    """The first row of a sorted piece whose id is at least `wanted`."""
    return bisect.bisect_left(
        range(piece.num_rows), wanted, key=lambda row: int(piece.read_ids(row, row + 1)[0])
    )


def runs(ids: Numbers) -> list[slice]:
    """Runs of consecutive numbers in `ids`, as slices of `ids`."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1).tolist()
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True)]


class _SortedCopy:
    """Rows in a temporary file, which is deleted with this object."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self._file = tempfile.TemporaryFile(prefix="graphmill-")  # noqa: SIM115 (closed by the finalizer)
        weakref.finalize(self, self._file.close)
        self._file.truncate(shape[0] * shape[1] * 4)
        self._lock = threading.Lock()

    def write(self, ids: Numbers, rows: Floats) -> None:
        """Write rows to their places, with one write per run of neighbours."""
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], np.ascontiguousarray(rows[order])
        for run in runs(ids):
            self._file.seek(int(ids[run.start]) * self.shape[1] * 4)
            self._file.write(rows[run].data)

    def read(self, start: int, stop: int) -> Floats:
        rows = np.empty((stop - start, self.shape[1]), np.float32)
        with self._lock:
            self._file.seek(start * self.shape[1] * 4)
            self._file.readinto(rows.data.cast("B"))
        return rows


def _sorted_copy(pieces: Sequence[Piece], shape: tuple[int, int], where: str) -> _SortedCopy:
    copy = _SortedCopy(shape)
    found = np.zeros(shape[0], bool)
    num_read = 0
    batch_rows = max(1, BATCH_BYTES // (4 * max(shape[1], 1)))
    for piece in pieces:
        for start in range(0, piece.num_rows, batch_rows):
            stop = min(start + batch_rows, piece.num_rows)
            ids = piece.read_ids(start, stop)
            copy.write(ids, piece.read(start, stop))
            found[ids] = True
            num_read += len(ids)
    _check_found(found, num_read, 0, where)
    return copy


def _check_found(found: npt.NDArray[np.bool_], num_read: int, first_id: int, where: str) -> None:
    if num_read == len(found) and found.all():
        return
    missing = np.flatnonzero(~found)
    what = f"id {first_id + int(missing[0])} is missing" if len(missing) else "an id occurs twice"
    raise FormatError(f"{where}: {what}: expected every id from 0 on once")
