"""The coordinator's end of the shards: where they are, and new holders for those that were lost.

A shard of a worker that was lost is made anew on another worker from the copy of the state that the worker
there trains on. All others then push what they know beyond it. A worker that has just come has the last
committed version, so that the run goes on even if all workers were lost.
"""

import logging
import uuid
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from typing import Any

from distributed import Actor, Client, Future

from graphmill.vocab import Bucket
from train.distributed import shards
from train.distributed.shards import Holder, ShardLostError, ShardServer

SHARD_BYTES = 1 << 20  # a smaller state has fewer shards than workers

log = logging.getLogger("graphmill")


class ShardPlacement:
    """Starts a ShardServer on each worker, and spreads the shards evenly."""

    def __init__(self, client: Client, num_workers: int, *, in_rounds: bool) -> None:
        """`in_rounds`: shards change and move at the end of a round only."""
        self.holders: list[Holder | None] = []  # of every shard; none until a worker has a copy of the state
        self._client, self._num_workers, self._in_rounds = client, num_workers, in_rounds
        self._servers: dict[str, Future] = {}  # by address
        self._ready: dict[str, Any] = {}  # actors with a copy of the state, by address
        self._former: dict[int, Holder] = {}  # where a shard moves from
        self._lost: dict[int, Holder] = {}  # holders that were lost, by shard
        self._numbers = count(1)
        self._told: tuple[list[Holder | None], set[str]] = ([], set())  # the holders that workers know
        self._pushed: dict[Bucket, int] = {}  # grants of the round under which changes wait
        self._revisions: dict[int, int] = {}  # at the end of the last round, by the holder's number

    def start(self, address: str) -> Future:
        """Start the server of a worker, unless it has one; returns its future."""
        if address not in self._servers:
            self._servers[address] = self._client.submit(
                ShardServer,
                key=f"graphmill-shards-{uuid.uuid4().hex[:12]}",
                workers=[address],
                allow_other_workers=False,
                actor=True,
                pure=False,
            )
        return self._servers[address]

    def add(self, address: str) -> None:
        """Note that a worker has a copy of the state."""
        if address not in self._servers or address in self._ready:
            return
        with self._client.as_current():
            self._ready[address] = Actor(ShardServer, address, self._servers[address].key)
        if not self.holders:
            with suppress(ShardLostError):  # all are the first worker's; they are spread as others come
                num_bytes = shards.call(self._ready[address], "num_bytes")
                self.holders = [None] * min(self._num_workers, max(1, num_bytes // SHARD_BYTES))
                self._find_holders(is_first=True)
        elif self._in_rounds:
            self._tell_holders()
        else:
            self._spread()

    def tend(self, present: Collection[str]) -> None:
        """Give up the shards of workers that are not `present`, and find new holders for them."""
        for address, future in list(self._servers.items()):
            if address not in present or future.status in ("error", "cancelled", "lost"):
                self._lose(address)
        self._find_holders()

    def publish(self, bucket: Bucket, grant: int) -> None:
        """Note that a bucket's changes are being pushed; in rounds they wait under its grant."""
        if self._in_rounds:
            self._pushed[bucket] = grant

    def give_up(self, bucket: Bucket) -> None:
        """Note that what was pushed of a bucket does not count: its worker was lost."""
        self._pushed.pop(bucket, None)

    def end_round(self) -> None:
        """Have the shards take over what the buckets of a round have changed, in one order in every run."""
        if self._in_rounds:
            merged = self._call_all("merge", [grant for _, grant in sorted(self._pushed.items())])
            self._revisions = {
                number: revision for revisions in merged for number, revision in revisions.items()
            }
            self._pushed.clear()
            self._spread()

    def close(self) -> None:
        """Free the servers."""
        self._client.cancel(list(self._servers.values()))
        self._servers, self._ready = {}, {}

    def _lose(self, address: str) -> None:
        self._client.cancel([self._servers.pop(address)])
        self._ready.pop(address, None)
        held = dict(enumerate(self.holders)) | self._former
        for shard, holder in held.items():
            if holder is not None and holder.address == address:
                self._lost[shard], self.holders[shard] = holder, None
                self._former.pop(shard, None)

    def _spread(self) -> None:
        """Move shards from the workers that hold the most to those that hold the fewest."""
        while self._ready:
            loads = {address: self._shards_on(address) for address in self._ready}
            most, least = (choose(loads, key=lambda address: len(loads[address])) for choose in (max, min))
            if len(loads[most]) < len(loads[least]) + 2:
                break
            shard = loads[most][-1]
            if (holder := self.holders[shard]) is not None:
                with suppress(ShardLostError):
                    shards.call(self._ready[most], "hand_over", holder.number)
                self._former[shard], self.holders[shard] = holder, None
            if not self._find_holder(shard, least, is_first=False):
                break
        self._find_holders()
        self._tell_holders()

    def _find_holders(self, *, is_first: bool = False) -> None:
        missing = [shard for shard, holder in enumerate(self.holders) if holder is None]
        for shard in missing:
            for address in self._candidates(shard):
                if self._find_holder(shard, address, is_first=is_first):
                    break
        self._tell_holders()

    def _candidates(self, shard: int) -> list[str]:
        """The workers that may hold a shard: those first that know most of it, then those that hold few."""
        knows = dict.fromkeys(self._ready, 0)
        if (lost := self._lost.get(shard)) is not None:
            for address, actor in self._ready.items():
                with suppress(ShardLostError):
                    knows[address] = shards.call(actor, "knows", lost.origin)
        return sorted(self._ready, key=lambda address: (-knows[address], len(self._shards_on(address))))

    def _find_holder(self, shard: int, address: str, *, is_first: bool) -> bool:
        """Give a shard to a worker; returns whether it has taken it."""
        number, place = next(self._numbers), (shard, len(self.holders))
        source = self._former.get(shard)
        try:
            actor, arguments = self._ready[address], (number, place, source, is_first)
            shards.call(actor, "hold", *arguments, timeout_s=shards.HOLD_S)
        except ShardLostError as error:
            log.debug("training: worker %s did not take shard %d: %s", address, shard, error)
            return False
        self._former.pop(shard, None)
        origin = number if source is None else source.origin
        self.holders[shard] = Holder(number, address, self._servers[address].key, origin)
        if (lost := self._lost.pop(shard, None)) is not None:
            self._log_loss(shard, lost, address)
        return True

    def _log_loss(self, shard: int, lost: Holder, address: str) -> None:
        text = "training: shard %d of %d of the shared state was lost with worker %s; %s has made it anew"
        log.info(text, shard + 1, len(self.holders), lost.address, address)
        with suppress(ShardLostError):
            knows = shards.call(self._ready[address], "knows", lost.origin)
            if self._pushed or knows < self._revisions.get(lost.number, 0):
                log.warning(
                    "training: what the last round had changed there is lost too: this run does not repeat "
                    "to the last byte"
                )

    def _shards_on(self, address: str) -> list[int]:
        return [number for number, holder in enumerate(self.holders) if holder and holder.address == address]

    def _tell_holders(self) -> None:
        """Tell all workers where the shards are, if that is news to one of them."""
        news = list(self.holders), set(self._ready)
        if self.holders and news != self._told:
            self._told = news
            self._call_all("place", self.holders)

    def _call_all(self, method: str, argument: Any) -> list[Any]:
        """Call a method of all servers at the same time; one that is lost is noticed by `tend`."""
        calls, answers = [], []
        for actor in self._ready.values():
            with suppress(RuntimeError):
                calls.append(getattr(actor, method)(argument))
        for call in calls:
            with suppress(OSError, RuntimeError):
                answers.append(call.result(timeout=shards.HOLD_S))
        return answers
