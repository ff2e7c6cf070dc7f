"""State that all buckets change: relation parameters, global embeddings, types with one partition.

Every worker trains on a copy of its own. The state itself is in shards on all workers (`shards`).

    dynamic        while a worker trains, a thread beside it pushes the rows that have moved and pulls those
                   that others have moved, every few seconds; before and after a bucket too
    tournament     a bucket begins with the state as of the end of the last round, to the last bit. What the
                   buckets of a round have changed waits at the shards for the end of the round

Source: the parameter server of PyTorch-BigGraph (arXiv:1903.12287, section 4.2), which sums changes; here
copies are averaged.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

import torch
from distributed import get_worker

from graphmill.ask.model import Model
from graphmill.config.partitions import PartitionKey, all_keys, is_shared
from graphmill.display import progress
from graphmill.formats.pbg_checkpoint import Iteration
from train.distributed import shards
from train.distributed.shards import Array, Holder, Name, ShardLostError, ShardServer
from train.distributed.shared_rows import STEPS, SharedRows, parameter_tables
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.plan.plan import Plan
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import ModelState, RunContext

POLL_S = 0.1  # between two looks for a shard that was lost
SHARE = 0.1  # of the time that exchanges may take beside training

Exchange = Callable[..., None]


class SharedState:
    """A worker's copy of the shared state.

    Attributes:
        tables: the types with one partition.
    """

    def __init__(
        self, context: RunContext, model: Model, adagrad: Adagrad, plan: Plan, server: ShardServer
    ) -> None:
        """Read the types with one partition, and offer the copy to this worker's server."""
        self.context, self.model, self.adagrad = context, model, adagrad
        self.files = PartitionFiles(context)
        config, settings = context.config, context.config.train
        self.in_rounds = settings.bucket_assignment == "tournament"
        self.interval_s = settings.shared_interval_s
        self.tables: dict[PartitionKey, Table] = {
            key: self.files.load(key, context.version) for key in all_keys(config) if is_shared(config, key)
        }
        self.parts = self._parts(steps_have_copies="fused" in plan.steps.values())
        self._num_bytes = 0
        self._since: defaultdict[tuple[int, bool], int] = defaultdict(int)
        self._own: defaultdict[int, set[int]] = defaultdict(set)  # revisions of pushes since the last pull
        self._worker = get_worker()
        self._server = server
        server.copy = self

    def begin(self) -> None:
        """Before a bucket: take over what others have changed; in a tournament also undo what is left."""
        for shard in self._order():
            self._patiently(shard, self._pull, at_rest=True)
        if self.in_rounds:
            for part in self.parts.values():
                part.reset()
        self._put_steps()

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Exchange rows while the block trains; in a tournament, nothing moves."""
        if self.in_rounds:
            yield
            return
        stop = threading.Event()
        with ThreadPoolExecutor(1, "exchange") as beside:
            exchange = beside.submit(self._exchange_until, stop, self._order())
            try:
                yield
            finally:
                stop.set()
        exchange.result()

    def push(self, grant: int) -> None:
        """After a bucket: push what it has changed; in a tournament, under the number `grant`."""
        self._take_steps()
        for shard in self._order():
            self._patiently(shard, self._push, at_rest=True, grant=grant if self.in_rounds else None)

    def write(self, path: str, version: int, iteration: Iteration) -> None:
        """Write the state of the shards as of `version` to the folder `path`."""
        self.begin()
        for key, table in self.tables.items():
            self.files.write(key, table, version, iteration, path)
        self.context.write_model(ModelState.copied(self.model, self.adagrad), version, iteration, path)

    def moved(self) -> dict[str, int]:
        """Bytes of rows pushed and pulled since the last call."""
        moved, self._num_bytes = self._num_bytes, 0
        return {"shared_bytes": moved}

    def names(self) -> Mapping[Name, int]:
        """The number of rows of every name."""
        return {name: len(part) for name, part in self.parts.items()}

    def num_bytes(self) -> int:
        """Size of the state."""
        return sum(len(part) * part.row_bytes for part in self.parts.values())

    def knows(self, origin: int) -> int:
        """The last revision that it has pulled of the shard with this origin."""
        return self._since[origin, False]

    def part_of(self, name: Name, first: int, last: int, *, is_shard: bool) -> tuple[Array, Array]:
        """Values and sums of the rows first..last, which become a shard if `is_shard`."""
        return self.parts[name].part(first, last, is_shard=is_shard)

    def _parts(self, *, steps_have_copies: bool) -> dict[Name, SharedRows]:
        frozen = Frozen.of(self.context.config).types
        parts = {
            key: SharedRows(table, self.in_rounds)
            for key, table in self.tables.items()
            if key[0] not in frozen
        }
        for name, table in parameter_tables(self.model, self.adagrad).items():
            parts[name] = SharedRows(table, self.in_rounds, at_rest=steps_have_copies)
        counts = torch.tensor(list(self.adagrad.steps.values()), dtype=torch.float64)
        parts[STEPS] = SharedRows(
            Table(counts.new_empty(len(counts), 0), counts), self.in_rounds, at_rest=True
        )
        return parts

    def _take_steps(self) -> None:
        counts = list(self.adagrad.steps.values())
        self.parts[STEPS].table.sums.copy_(torch.tensor(counts, dtype=torch.float64))

    def _put_steps(self) -> None:
        self.adagrad.steps.update(
            zip(self.adagrad.steps, map(int, self.parts[STEPS].table.sums), strict=True)
        )

    def _order(self) -> list[int]:
        """All shards, another one first on each worker, so that not all ask the same server at a time."""
        while not (num := len(self._server.holders)):
            progress.stop_if_cancelled()
            time.sleep(POLL_S)
        first = crc32(self._worker.address.encode()) % num
        return [(first + number) % num for number in range(num)]

    def _patiently(self, shard: int, exchange: Exchange, **arguments: Any) -> None:
        """Exchange with a shard; if it is lost, wait until another worker holds it."""
        while True:
            with suppress(ShardLostError):
                return exchange(shard, **arguments)
            progress.stop_if_cancelled()
            time.sleep(POLL_S)

    def _exchange_until(self, stop: threading.Event, order: list[int]) -> None:
        """Exchange rows with one shard after another; a shard that is lost has its turn the next time."""
        pause_s = self.interval_s
        while not stop.wait(pause_s):
            begun = time.monotonic()
            for shard in order:
                with suppress(ShardLostError):
                    self._push(shard, at_rest=False, grant=None)
                    self._pull(shard, at_rest=False)
                if stop.is_set():
                    return
            pause_s = max(self.interval_s, (time.monotonic() - begun) * (1 / SHARE - 1))

    def _push(self, shard: int, *, at_rest: bool, grant: int | None) -> None:
        """Push the rows that have moved."""
        holder = self._holder(shard)
        moved = {
            name: part.moved(*shards.range_of(shard, len(self._server.holders), len(part)))
            for name, part in self.parts.items()
            if at_rest or not part.at_rest
        }
        for number, batch in enumerate(self._batches(moved)):
            pushed = [self.parts[name].push(name, rows) for name, rows in batch]
            revision = self._call(holder, "push", pushed, grant, number)
            self._num_bytes += sum(each.nbytes for each in pushed)
            if grant is None:
                self._own[holder.origin].add(revision)
                for each in pushed:
                    self.parts[each.name].pushed(each)

    def _pull(self, shard: int, *, at_rest: bool) -> None:
        """Take over the rows that others have changed."""
        holder = self._holder(shard)
        for resting in (True, False) if at_rest else (False,):  # `knows` speaks of what comes last
            names = [name for name, part in self.parts.items() if part.at_rest == resting]
            since = self._since[holder.origin, resting]
            revision, changed = self._call(holder, "changed", names, since, self._own[holder.origin])
            for batch in self._batches(changed):
                found = self._call(holder, "read", batch)
                for (name, rows), (values, sums) in zip(batch, found, strict=True):
                    self.parts[name].pull(rows, values, sums)
                    self._num_bytes += rows.nbytes + values.nbytes + sums.nbytes
            self._since[holder.origin, resting] = revision
        self._own[holder.origin].clear()

    def _batches(self, wanted: Mapping[Name, Array]) -> Iterator[list[tuple[Name, Array]]]:
        return shards.batches(wanted, {name: part.row_bytes for name, part in self.parts.items()})

    def _holder(self, shard: int) -> Holder:
        holder = self._server.holders[shard]
        if holder is None:
            raise ShardLostError(f"nobody holds shard {shard}")
        return holder

    def _call(self, holder: Holder, method: str, *arguments: Any) -> Any:
        return shards.call_from_worker(self._worker, holder, method, *arguments)
