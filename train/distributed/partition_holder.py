"""The partitions in a worker's memory that no bucket of it needs now; other workers fetch them from here.

A Dask actor per worker. Its method `rows` is called from worker to worker by Dask's own transfers: with the
cluster's protocol (TCP, TLS, UCX) and on the workers' ports. It lives as long as the run.

A partition is here from the end of its bucket until a bucket of this worker takes it. It may be dropped once
its revision is in a file. No import of torch: the client names the class.

Shapes: N rows, n rows of a piece, D dimension.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphmill.checkpoints import Floats
from graphmill.config.partitions import PartitionKey
from train.edges.schedule import Schedule

if TYPE_CHECKING:
    from train.step.step import Table

Entry = tuple[PartitionKey, int]  # a partition and its revision


@dataclass
class Resting:
    """A table that nobody trains."""

    table: Table
    folder: str  # for its file, of the next `version`
    version: int
    is_safe: bool  # its revision is in a file
    is_fetched: bool = False  # another worker has it, who will train a newer revision


def bytes_of(table: Table) -> int:
    """Memory of the rows and sums of a table."""
    return int(table.embeddings_ND.nbytes + table.sums.nbytes)


class PartitionHolder:
    """A worker's resting partitions."""

    def __init__(self, schedule: Schedule, num_blocks: int = 0) -> None:
        """The run's schedule, and its number of blocks (0: buckets train one by one), for all its tasks."""
        self.schedule, self.num_blocks = schedule, num_blocks
        self.worker: Any = None  # what one task of the run leaves for the next one
        self._resting: dict[Entry, Resting] = {}  # the oldest first
        self._lock = threading.Lock()  # the event loop serves, the task takes and puts

    async def rows(
        self, key: PartitionKey, revision: int, start: int, stop: int
    ) -> tuple[Floats, Floats] | None:
        """Rows [start, stop) of a partition: embeddings [n, D] and sums [n, ...]; None if it is not here.

        Views, which Dask sends without a copy. As a coroutine it waits for no other call of an actor.
        """
        with self._lock:
            resting = self._resting.get((key, revision))
        if resting is None:
            return None
        embeddings_nD, sums = (
            array[start:stop].cpu().numpy() for array in (resting.table.embeddings_ND, resting.table.sums)
        )
        if stop >= len(resting.table):
            resting.is_fetched = True
        return embeddings_nD, sums

    def put(self, entry: Entry, resting: Resting) -> None:
        """Let others fetch a table from now on."""
        with self._lock:
            self._resting[entry] = resting

    def take(self, entry: Entry) -> Resting | None:
        """Remove a table, if it is here, to train it or to drop it."""
        with self._lock:
            return self._resting.pop(entry, None)

    def get(self, entry: Entry) -> Resting | None:
        """A table, if it is here; it stays."""
        with self._lock:
            return self._resting.get(entry)

    def resting(self) -> list[tuple[Entry, Resting]]:
        """All tables, the oldest first."""
        with self._lock:
            return list(self._resting.items())
