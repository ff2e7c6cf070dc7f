"""The part of a table with the ids 0 to N - 1 that one shard of a RecIS checkpoint owns, read on request.

65536 consecutive ids have each hash slot once: a shard owns a run of neighbours in each such cycle.
"""

import numpy as np

from graphmill.checkpoints.checkpoint import Floats, Rows
from graphmill.checkpoints.ordered import Numbers
from graphmill.formats.recis import Slice
from graphmill.formats.recis.layout import NUM_HASH_SLOTS


class OwnedIds:
    """The ids among 0 to N - 1 that a shard owns, in order, computed on request."""

    dtype = np.dtype(np.int64)

    def __init__(self, count: int, owned: Slice) -> None:
        cycles, rest = divmod(count, NUM_HASH_SLOTS)
        self._owned, self._width = owned, owned.end - owned.begin
        self.shape = (cycles * self._width + min(max(rest - owned.begin, 0), self._width),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Numbers:
        cycle, within = np.divmod(np.arange(*rows.indices(len(self))), self._width)
        return np.asarray(cycle * NUM_HASH_SLOTS + self._owned.begin + within)


class OwnedRows:
    """Rows of the ids that a shard owns, read in runs of neighbours."""

    dtype = np.dtype(np.float32)

    def __init__(self, rows: Rows, owned: Slice) -> None:
        self._rows, self._ids = rows, OwnedIds(rows.shape[0], owned)
        self.shape = len(self._ids), rows.shape[1]

    def __getitem__(self, rows: slice) -> Floats:
        ids = self._ids[rows]
        runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
        found = [self._rows.read(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
        if len(found) == 1:
            return found[0]
        return np.concatenate([np.empty((0, self.shape[1]), np.float32), *found])
