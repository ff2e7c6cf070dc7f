"""Tables of formats without partitions: integer id = number of rows in the partitions before + index.

Reading: `OrderedTable` has rows with integer ids, stored in any order, in the order of their ids: pieces that
are sorted by id are merged during reading, others are first sorted into a temporary file of the table's size.
The rows are never all in memory. `WholeTablesCheckpoint` cuts a table into partitions.
Writing: `open_joined` and `open_joined_sums` join the partitions of a type to one table; its row k belongs to
the entity with the integer id k.

Shapes: N rows of a table, D dimension.
"""

import bisect
import itertools
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import BATCH_BYTES, Checkpoint, Floats, Rows, rows_of_batch
from graphmill.errors import FormatError
from graphmill.formats import entity_counts
from graphmill.storage.filesystems import explained
from graphmill.vocab import Partition

Numbers = npt.NDArray[np.int64]


class OrderedPiece(NamedTuple):
    """Some rows of a table: ids, or a function that reads those of rows [start, stop), and one for values."""

    num_rows: int
    ids: Numbers | Callable[[int, int], Any]
    values: Callable[[int, int], Any]

    def read_ids(self, start: int, stop: int) -> Numbers:
        """Ids of rows [start, stop) of the piece, int64 [n]."""
        ids = self.ids[start:stop] if isinstance(self.ids, np.ndarray) else self.ids(start, stop)
        return np.asarray(ids, np.int64).reshape(-1)

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) of the piece, float32 [n, D]."""
        return np.asarray(self.values(start, stop), np.float32).reshape(stop - start, -1)


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
            yield self._copy or Rows(self.shape, _Merged(pieces, self.shape, self._where).read)


def _is_sorted(pieces: Sequence[OrderedPiece], count: int, where: str, hint: str) -> bool:
    batch_rows = BATCH_BYTES // 8
    is_sorted = True
    for piece in pieces:
        last = -1
        for start in range(0, piece.num_rows, batch_rows):
            ids = piece.read_ids(start, min(start + batch_rows, piece.num_rows))
            outside = ids[(ids < 0) | (ids >= count)]
            if len(outside):
                known = f"expected the ids 0 to {count - 1}, each once{hint}"
                raise FormatError(f"{where}: id {int(outside[0])} among {count} rows: {known}")
            is_sorted = is_sorted and int(ids[0]) > last and bool((np.diff(ids) > 0).all())
            last = int(ids[-1])
    return is_sorted


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
    return Rows(shape, lambda start, stop: np.array(copy[start:stop]))


def mapped_array(shape: tuple[int, ...], dtype: npt.DTypeLike, folder: str | None = None) -> npt.NDArray[Any]:
    """Make an array in a mapped temporary file, in `folder` or where temporary files are."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    folder = folder or tempfile.gettempdir()
    with explained("reserve temporary space", folder), tempfile.TemporaryFile(dir=folder) as file:
        # A full disk is an error here. Without reserved space, a write to the map would kill the process.
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(dtype).itemsize)
        return np.memmap(file, dtype, "r+", shape=shape)


def _check_all_read(is_read: npt.NDArray[np.bool_], num_read: int, first_id: int, where: str) -> None:
    if num_read == len(is_read) and is_read.all():
        return
    missing = np.flatnonzero(~is_read)
    mistake = f"id {first_id + int(missing[0])} is missing" if len(missing) else "an id occurs twice"
    raise FormatError(f"{where}: {mistake}: expected every id from 0 on once")


class WholeTablesCheckpoint(Checkpoint):
    """A checkpoint with one table of rows and integer ids per entity type."""

    def __init__(
        self,
        uri: str,
        version: int,
        tables: Mapping[str, OrderedTable],
        recorded_counts: Mapping[str, Sequence[int]] | None,
        entity_path: str | None,
    ) -> None:
        """Open the checkpoint of `version` (or 0) with a table of embeddings for each entity type.

        `recorded_counts` are the checkpoint's rows of each partition, if any. Counts in `entity_path` replace
        them. A type without counts has one partition.
        """
        super().__init__(uri, version)
        self._tables, self._recorded_counts, self._entity_path = tables, recorded_counts, entity_path

    @cached_property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """Rows of each partition of each entity type."""
        totals = {name: table.shape[0] for name, table in self._tables.items()}
        counts = self._recorded_counts
        if self._entity_path is not None:
            counts = entity_counts.list_counts(self._entity_path)
        elif counts is not None and (unknown := counts.keys() - totals.keys()):
            raise FormatError(
                f"{self.uri}: expected a table for each count, found counts of {sorted(unknown)[0]!r}, of "
                "which there are no rows"
            )
        if counts is None:
            return {name: [total] for name, total in totals.items()}
        counts_uri = self._entity_path or self.uri
        for name, total in totals.items():
            if not totals.keys() & counts.keys():
                known = ", ".join(counts)
                raise FormatError(f"{self.uri}: {name!r} has no counts in {counts_uri}, which has {known}")
            if (counted := sum(counts.get(name, [total]))) != total:
                raise FormatError(
                    f"{self.uri}: {name!r} has {total} rows; expected {counted}, as {counts_uri} counts"
                )
        return {name: list(counts.get(name, [total])) for name, total in totals.items()}

    @property
    def dimensions(self) -> Mapping[str, int]:
        """Columns of each table."""
        return {name: table.shape[1] for name, table in self._tables.items()}

    def open_rows(
        self, entity_type: str, partition: Partition, *, whole: bool = False
    ) -> AbstractContextManager[Rows]:
        """The embeddings of one partition; these formats have no checksums."""
        return self._open_partition(self._tables[entity_type], entity_type, partition)

    @contextmanager
    def _open_partition(self, table: OrderedTable, entity_type: str, partition: Partition) -> Iterator[Rows]:
        counts = self.counts[entity_type]
        with table.open() as rows:
            first, count = sum(counts[:partition]), counts[partition]
            yield Rows(
                (count, rows.shape[1]), lambda start, stop: rows.read(first + start, first + min(stop, count))
            )


@contextmanager
def open_joined(source: Checkpoint, entity_type: str) -> Iterator[Rows]:
    """Open the embeddings [N, D] of all partitions of a type, each when needed; several threads may read."""
    with ExitStack() as stack:

        @cache
        def opened(partition: Partition) -> Rows:
            return stack.enter_context(source.open_whole(entity_type, partition))

        yield _joined(source, entity_type, source.dimensions[entity_type], lambda part: opened(part).read)


@contextmanager
def open_joined_sums(source: Checkpoint, entity_type: str, width: int) -> Iterator[Rows]:
    """Open Adagrad's sums [N, 1] or [N, D], 0 where there are none; one partition at a time is in memory."""

    @lru_cache(maxsize=1)
    def loaded(partition: Partition) -> Callable[[int, int], Floats]:
        shape = source.counts[entity_type][partition], source.dimensions[entity_type]
        state = source.read_optimizer_state(entity_type, partition) or {}
        sums = states.table_sums(state, shape, f"{source.uri}: {entity_type}_{partition}")
        rows = np.zeros((shape[0], 1), np.float32) if sums is None else sums.reshape(shape[0], -1).numpy()
        return lambda start, stop: np.broadcast_to(rows, (shape[0], width))[start:stop]

    yield _joined(source, entity_type, width, loaded)


def _joined(
    source: Checkpoint,
    entity_type: str,
    width: int,
    reader_of: Callable[[Partition], Callable[[int, int], Floats]],
) -> Rows:
    starts, lock = [0, *itertools.accumulate(source.counts[entity_type])], threading.Lock()

    def read(start: int, stop: int) -> Floats:
        pieces = [np.empty((0, width), np.float32)]
        while start < stop:
            partition = bisect.bisect_right(starts, start) - 1
            first, last = starts[partition], min(stop, starts[partition + 1])
            with lock:
                pieces.append(reader_of(partition)(start - first, last - first))
            start = last
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    return Rows((starts[-1], width), read)
