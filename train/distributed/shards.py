"""Shards of the state that all buckets change: a Dask actor on each worker holds some ranges of rows.

    worker             holds a copy of the whole state, and trains on it      SharedState
      push             rows that it has changed since it last heard of them
      pull             rows that the shard has changed since
    shard              merges what workers push; its rows are the state       ShardServer, on every worker

Both sides merge by one rule (`merged`): docs/explanation/distributed_training.md.

No import of torch: the client of a distributed run needs this module.

Shapes: N rows of a shard, K rows of a message, D dimension. Sums are [K], or [K, D] of element-wise Adagrad.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed import Worker, get_worker

from train.distributed.messages import call_actor
from train.edges.schedule import equal_part

PIECE_BYTES = 8 << 20  # of rows in one message
CALL_S = 30.0  # a shard counts as lost if a call takes longer
HOLD_S = 900.0  # for a whole shard

Array = np.ndarray[Any, Any]
Name = tuple[str, int]  # of rows with one shape: a partition's key, or a kind of parameters


class ShardLostError(Exception):
    """A shard is not where a worker looks for it: its holder was lost, or has handed it over."""


class Holder(NamedTuple):
    """The server that holds a shard."""

    number: int  # of this holder; a shard that moves gets another one
    address: str
    server: str  # key of the actor
    origin: int  # number of the holder whose revisions these are; another one after a loss


class ShardRows(NamedTuple):
    """Some rows of one name in a message."""

    name: Name
    rows: Array  # int64 [K], of the whole table
    values: Array  # [K, D]
    sums: Array
    base: Array  # sums that the sender had when its copy and the shard's were last equal

    @property
    def nbytes(self) -> int:
        """Size in a message."""
        return sum(array.nbytes for array in self[1:])


def merged(xp: Any, ours: tuple[Any, Any], theirs: tuple[Any, Any], base: Any) -> tuple[Any, Any]:
    """Merge values and sums of two copies that parted when the sums were `base`; `xp` is numpy or torch.

    A copy whose sums are below `base` has missed something: it counts for nothing.
    """
    (values, sums), (their_values, their_sums) = ours, theirs
    own, other = sums - base, their_sums - base
    total = own + other
    share = xp.where(own > 0, other / xp.where(total > 0, total, 1), 1)
    share = xp.where(other < 0, 0, share)
    new_sums = xp.where(other < 0, sums, xp.where(own > 0, sums + other, their_sums))
    weight = share if share.ndim == values.ndim else share[:, None]
    step = their_values - values
    # As torch.lerp: exact at both ends.
    near, far = values + weight * step, their_values - step * (1 - weight)
    return xp.where(weight < 0.5, near, far), new_sums


def batches(
    wanted: Mapping[Name, Array], row_bytes: Mapping[Name, int]
) -> Iterator[list[tuple[Name, Array]]]:
    """Cut lists of rows so that a message of their values and sums has at most PIECE_BYTES."""
    batch: list[tuple[Name, Array]] = []
    left = PIECE_BYTES
    for name, rows in wanted.items():
        size = max(1, row_bytes[name])  # a table without rows has no size of a row
        most = max(1, PIECE_BYTES // size)
        for begun in range(0, len(rows), most):
            piece = rows[begun : begun + most]
            if batch and len(piece) * size > left:
                yield batch
                batch, left = [], PIECE_BYTES
            batch.append((name, piece))
            left -= len(piece) * size
    if batch:
        yield batch


def call_from_worker(worker: Worker, holder: Holder, method: str, *arguments: Any) -> Any:
    """Call a method of a ShardServer about the holder's shard, from another worker."""
    try:
        return call_actor(worker, holder.address, holder.server, method, holder.number, *arguments)
    except (OSError, KeyError) as error:
        raise ShardLostError(str(error)) from error


def call(actor: Any, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
    """Call a method of a ShardServer, from the client."""
    try:
        return getattr(actor, method)(*arguments).result(timeout=timeout_s)
    except (OSError, RuntimeError) as error:  # a timeout is an OSError; Dask raises both for a lost actor
        raise ShardLostError(str(error)) from error


@dataclass
class _Part:
    """A shard's rows of one name, from the row `first` on."""

    first: int
    values: Array  # [N, D]
    sums: Array
    revisions: Array  # int64 [N]: when a row last changed

    def merge(self, pushed: ShardRows, revision: int) -> None:
        """Merge rows; those that are not as they were pushed get the revision after `revision`."""
        at = pushed.rows - self.first
        values, sums = self.values[at], self.sums[at]
        self.values[at], self.sums[at] = merged(np, (values, sums), (pushed.values, pushed.sums), pushed.base)
        as_pushed = (sums <= pushed.base) & (pushed.sums >= pushed.base)
        if as_pushed.ndim == 2:
            as_pushed = as_pushed.all(1)
        self.revisions[at] = np.where(as_pushed, revision, revision + 1)


class _Shard:
    """Ranges of rows of all names, with a clock of revisions; the shard `index` of all."""

    def __init__(self, index: int, parts: dict[Name, _Part], revision: int) -> None:
        self.index, self.parts, self.revision = index, parts, revision
        # Pushes that wait for the end of the round, by grant and piece.
        self.pending: defaultdict[int, dict[int, Sequence[ShardRows]]] = defaultdict(dict)
        self.is_leaving = False  # another server is about to read it, so nothing may change

    def merge(self, pushed: Sequence[ShardRows]) -> int:
        revision = self.revision + 1
        self.revision += 2
        for message in pushed:
            self.parts[message.name].merge(message, revision)
        return revision


class ShardServer:
    """The shards that one worker holds: an actor, whose methods run one at a time."""

    def __init__(self) -> None:
        self.holders: Sequence[Holder | None] = ()  # of every shard; the coordinator sends them
        self.copy: Any = None  # the worker's SharedState, once it has one: a shard is made from it
        self._shards: dict[int, _Shard] = {}

    def num_bytes(self) -> int:
        """Size of the whole state."""
        num_bytes: int = 0 if self.copy is None else self.copy.num_bytes()
        return num_bytes

    def knows(self, origin: int) -> int:
        """The last revision of a shard that this worker's copy has; -1 if there is no copy."""
        revision: int = -1 if self.copy is None else self.copy.knows(origin)
        return revision

    def hold(self, number: int, place: tuple[int, int], source: Holder | None, is_first: bool) -> None:
        """Begin to hold a shard, the first of `place[1]` or a later one, under the number `number`.

        Its rows come from `source`, or else from this worker's own copy. If `is_first`, they are equal to
        the copies that all workers begin with.
        """
        if self.copy is None:
            raise ShardLostError("this worker has no copy of the shared state yet")
        if source is not None and source.number in self._shards:  # it stays where it was
            shard = self._shards[number] = self._shards.pop(source.number)
            shard.is_leaving = False
            return
        shard = _Shard(place[0], {}, 0 if is_first else 1)
        for name, rows in self.copy.parts.items():
            first, last = equal_part(len(rows), *place)
            values, sums = rows.part(first, last, is_shard=source is None)
            shard.parts[name] = _Part(first, values, sums, np.full(last - first, shard.revision, np.int64))
        if source is not None:
            _copy_shard(source, shard)
        self._shards[number] = shard

    def hand_over(self, number: int) -> None:
        """Take no more pushes for a shard, which another server is about to read."""
        self._shard(number, is_leaving=True).is_leaving = True

    def place(self, holders: Sequence[Holder | None]) -> None:
        """Note where the shards are, and drop those that are not here any more."""
        self.holders = holders
        numbers = {holder.number for holder in holders if holder is not None}
        for number, shard in list(self._shards.items()):
            if number not in numbers and not (shard.is_leaving and holders[shard.index] is None):
                del self._shards[number]

    def push(self, number: int, pushed: Sequence[ShardRows], grant: int | None, piece: int) -> int:
        """Merge rows, now or by `merge`; returns the revision of those that are as they were pushed.

        With a `grant`, the rows wait for `merge`; the same piece may come again.
        """
        shard = self._shard(number)
        if grant is None:
            return shard.merge(pushed)
        shard.pending[grant][piece] = pushed
        return 0

    def merge(self, grants: Sequence[int]) -> dict[int, int]:
        """Merge the rows that wait under these grants, in this order; drop all others that wait.

        Returns the revision of every shard now, by its number.
        """
        for shard in self._shards.values():
            for grant in grants:
                for pushed in shard.pending.pop(grant, {}).values():
                    shard.merge(pushed)
            shard.pending.clear()
        return {number: shard.revision for number, shard in self._shards.items()}

    def changed(
        self, number: int, names: Iterable[Name], since: int, own: Collection[int]
    ) -> tuple[int, dict[Name, Array]]:
        """The revision now, and the rows that have changed after `since`, but not in the revisions `own`."""
        shard, rows_of = self._shard(number), {}
        for name in names:
            part = shard.parts[name]
            is_new = part.revisions > since
            if own:
                is_new &= ~np.isin(part.revisions, list(own))
            rows_of[name] = np.flatnonzero(is_new) + part.first
        return shard.revision, rows_of

    def revisions(self, number: int) -> tuple[int, dict[Name, Array]]:
        """The revision now, and that of every row; also of a shard that is handed over."""
        shard = self._shard(number, is_leaving=True)
        return shard.revision, {name: part.revisions for name, part in shard.parts.items()}

    def read(self, number: int, wanted: Sequence[tuple[Name, Array]]) -> list[tuple[Array, Array]]:
        """Values and sums of rows; also of a shard that is handed over."""
        shard, arrays = self._shard(number, is_leaving=True), []
        for name, rows in wanted:
            part = shard.parts[name]
            arrays.append((part.values[rows - part.first], part.sums[rows - part.first]))
        return arrays

    def _shard(self, number: int, *, is_leaving: bool = False) -> _Shard:
        shard = self._shards.get(number)
        if shard is None or (shard.is_leaving and not is_leaving):
            raise ShardLostError(f"shard {number} is not here")
        return shard


def _copy_shard(source: Holder, shard: _Shard) -> None:
    worker = get_worker()
    shard.revision, revisions = call_from_worker(worker, source, "revisions")
    for name, part in shard.parts.items():
        part.revisions = np.array(revisions[name])
    wanted = {name: np.arange(len(part.values)) + part.first for name, part in shard.parts.items()}
    row_bytes = {
        name: (part.values.nbytes + part.sums.nbytes) // max(1, len(part.values))
        for name, part in shard.parts.items()
    }
    for batch in batches(wanted, row_bytes):
        arrays = call_from_worker(worker, source, "read", batch)
        for (name, rows), (values, sums) in zip(batch, arrays, strict=True):
            part = shard.parts[name]
            part.values[rows - part.first], part.sums[rows - part.first] = values, sums
