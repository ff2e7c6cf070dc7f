"""Tables of formats without partitions: integer id = number of rows in the partitions before + index.

Reading: `WholeTablesCheckpoint` cuts a table into partitions. Writing: `JoinedRows` and `JoinedSums` join the
partitions of an entity type to one table; its row k belongs to the entity with the integer id k.
"""

import bisect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, Floats, ReadRows, Rows
from graphmill.checkpoints.ordered import OrderedTable
from graphmill.errors import FormatError
from graphmill.formats import entity_counts
from graphmill.vocab import Partition


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
        them. Without both, a type has one partition.
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
        for name, total in totals.items():
            self._check_counts(counts, name, total)
        return {name: list(counts[name]) for name in totals}

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
            yield ReadRows(
                (count, rows.shape[1]),
                lambda start, stop: rows.read(first + start, first + min(stop, count)),
            )

    def _check_counts(self, counts: Mapping[str, Any], name: str, total: int) -> None:
        counts_uri = self._entity_path or self.uri
        if name not in counts:
            known = ", ".join(counts)
            raise FormatError(f"{self.uri}: {name!r} has no counts in {counts_uri}, which has {known}")
        rows = counts[name]
        if not (isinstance(rows, list | tuple) and all(type(num) is int and num >= 0 for num in rows)):
            raise FormatError(
                f"{self.uri}: {name!r}: expected the rows of each partition from 0 on, found {rows!r:.80}"
            )
        if sum(rows) != total:
            raise FormatError(
                f"{self.uri}: {name!r} has {total} rows; expected {sum(rows)}, as {counts_uri} counts"
            )


class JoinedRows(AbstractContextManager["JoinedRows"]):
    """Embeddings [N, D] of all partitions of a type, opened when needed; several threads may read."""

    def __init__(self, source: Checkpoint, entity_type: str, width: int | None = None) -> None:
        self._source, self._entity_type = source, entity_type
        self._starts = [0, *itertools.accumulate(source.counts[entity_type])]
        self.shape = self._starts[-1], source.dimensions[entity_type] if width is None else width
        self._opened: dict[Partition, Rows] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) over all partitions."""
        pieces = [np.empty((0, self.shape[1]), np.float32)]
        while start < stop:
            partition = bisect.bisect_right(self._starts, start) - 1
            first = self._starts[partition]
            last = min(stop, self._starts[partition + 1])
            with self._lock:
                pieces.append(self._read_partition(partition, start - first, last - first))
            start = last
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _read_partition(self, partition: Partition, start: int, stop: int) -> Floats:
        if partition not in self._opened:
            opening = self._source.open_whole(self._entity_type, partition)
            self._opened[partition] = self._stack.enter_context(opening)
        return self._opened[partition].read(start, stop)


class JoinedSums(JoinedRows):
    """Adagrad sums [N, 1] or [N, D], 0 where a partition has none; one partition at a time is in memory."""

    _held: tuple[Partition, Floats] = -1, np.empty((0, 0), np.float32)

    def _read_partition(self, partition: Partition, start: int, stop: int) -> Floats:
        if self._held[0] != partition:
            source, name = self._source, self._entity_type
            shape = source.counts[name][partition], source.dimensions[name]
            state = source.read_optimizer_state(name, partition) or {}
            sums = states.table_sums(state, shape, f"{source.uri}: {name}_{partition}")
            rows = np.zeros((shape[0], 1), np.float32) if sums is None else sums.reshape(shape[0], -1).numpy()
            self._held = partition, np.broadcast_to(rows, (shape[0], self.shape[1]))
        return self._held[1][start:stop]
