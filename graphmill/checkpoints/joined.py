"""All partitions of an entity type as one table, whose row k is the entity with the integer id k."""

import bisect
import itertools
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, Floats, Rows


class JoinedRows(AbstractContextManager["JoinedRows"]):
    """Embeddings [N, D]; partitions are opened as they are needed. Safe to read from several threads."""

    def __init__(self, source: Checkpoint, entity_type: str) -> None:
        self._source, self._entity_type = source, entity_type
        counts = source.counts[entity_type]
        self._starts = [0, *itertools.accumulate(counts)]
        self.shape = self._starts[-1], source.dimensions[entity_type]
        self._opened: dict[int, Rows] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) over all partitions."""
        pieces = [np.empty((0, self.shape[1]), np.float32)]
        with self._lock:
            while start < stop:
                partition = bisect.bisect_right(self._starts, start) - 1
                first = self._starts[partition]
                last = min(stop, self._starts[partition + 1])
                pieces.append(self._rows(partition).read(start - first, last - first))
                start = last
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _rows(self, partition: int) -> Rows:
        if partition not in self._opened:
            opening = self._source.open_whole(self._entity_type, partition)
            self._opened[partition] = self._stack.enter_context(opening)
        return self._opened[partition]


class JoinedSums:
    """Adagrad sums [N, 1] or [N, D]; one partition's are in memory at a time, 0 where it has none."""

    def __init__(self, source: Checkpoint, entity_type: str, width: int) -> None:
        self._source, self._entity_type = source, entity_type
        self._starts = [0, *itertools.accumulate(source.counts[entity_type])]
        self.shape = self._starts[-1], width
        self._held: tuple[int, Any] = (-1, None)

    def read(self, start: int, stop: int) -> Floats:
        """Sums of rows [start, stop) over all partitions."""
        pieces = [np.empty((0, self.shape[1]), np.float32)]
        while start < stop:
            partition = bisect.bisect_right(self._starts, start) - 1
            first = self._starts[partition]
            last = min(stop, self._starts[partition + 1])
            pieces.append(self._sums(partition)[start - first : last - first])
            start = last
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _sums(self, partition: int) -> Floats:
        if self._held[0] != partition:
            source, name = self._source, self._entity_type
            count = source.counts[name][partition]
            state = source.optimizer_state(name, partition) or {}
            where = f"{source.uri}: {name}_{partition}"
            sums = states.table_sums(state, (count, source.dimensions[name]), where)
            shaped = np.zeros((count, self.shape[1])) if sums is None else sums.reshape(count, -1).numpy()
            self._held = (
                partition,
                np.broadcast_to(shaped.astype(np.float32, copy=False), (count, self.shape[1])),
            )
        held: Floats = self._held[1]
        return held
