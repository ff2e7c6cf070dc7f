"""State that all buckets change: relation parameters, global embeddings, types with one partition.

Every worker trains on a copy of its own, and notes what it has heard last of each row. The state itself is in
shards on all workers (`shards`). When rows are pushed and pulled: docs/explanation/distributed_training.md.
Source: the parameter server of PyTorch-BigGraph (arXiv:1903.12287, section 4.2), which sums changes.

Parameters of one width lie together in one table, so that a thousand static relations are no more messages
than one. The steps keep moving the same memory: a parameter becomes a view of some rows.

Shapes: N rows, K rows of a message, D dimension. Sums are [N], or [N, D] of element-wise Adagrad.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch
from distributed import get_worker
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config.partitions import PartitionKey, all_keys, is_shared
from graphmill.display import progress
from train.distributed import shards
from train.distributed.shards import Array, Holder, Name, ShardLostError, ShardRows, ShardServer, merged
from train.edges.schedule import equal_part
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.plan.plan import Plan
from train.step.step import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext, copied_states

POLL_S = 0.1  # between two looks for a shard that was lost
SHARE = 0.1  # of the time that exchanges may take beside training

Exchange = Callable[..., None]

PARAMETERS = ""  # first half of a name, before the width; a type has a longer name
STEPS: Name = ("", -1)  # numbers of steps of the parameters, as sums of rows without values


@dataclass(eq=False)
class SharedRows:
    """Rows that the steps move, and their sums when this copy and the shard's were last equal.

    With `in_rounds` the rows change only between two rounds, and then become those of the shards; else both
    copies are merged at any time.
    """

    table: Table
    in_rounds: bool
    at_rest: bool = False  # steps keep copies of these rows: they move only between two buckets
    base: Table = field(init=False)  # values and sums as the shards have them; without `in_rounds` no values

    def __post_init__(self) -> None:
        values = self.table.embeddings_ND
        self.base = Table(values.clone() if self.in_rounds else values[:0], self.table.sums.clone())

    def __len__(self) -> int:
        return len(self.table)

    @property
    def row_bytes(self) -> int:
        """Size of a row with its sums."""
        both = (self.table.embeddings_ND, self.table.sums)
        return sum(tensor[:1].numel() * tensor.element_size() for tensor in both)

    def moved(self, first: int, last: int) -> Array:
        """Those of the rows first..last that have seen a gradient since `base`."""
        differ = self.table.sums[first:last] != self.base.sums[first:last]
        if differ.dim() == 2:
            differ = differ.any(1)
        return differ.nonzero().squeeze(1).cpu().numpy() + first

    def push(self, name: Name, rows: Array) -> ShardRows:
        """Make the message of some rows."""
        at = _tensor(rows, self.table.sums.device)
        sums = self.table.sums[at]  # before the values: a step in between is pushed again, not lost
        values = self.table.embeddings_ND[at]
        return ShardRows(name, rows, *(tensor.cpu().numpy() for tensor in (values, sums, self.base.sums[at])))

    def pushed(self, message: ShardRows) -> None:
        """Note that the shard has merged the rows."""
        at, sums = (_tensor(array, self.table.sums.device) for array in (message.rows, message.sums))
        self.base.sums[at] = sums

    def pull(self, rows: Array, values: Array, sums: Array) -> None:
        """Take over rows of the shard, merged with what this copy has seen since."""
        device = self.table.sums.device
        at, *theirs = (_tensor(array, device) for array in (rows, values, sums))
        if self.in_rounds:
            self.base.embeddings_ND[at] = theirs[0]
        else:
            ours = self.table.embeddings_ND[at], self.table.sums[at]
            both = merged(torch, ours, (theirs[0], theirs[1]), self.base.sums[at])
            self.table.embeddings_ND[at], self.table.sums[at] = both
        self.base.sums[at] = theirs[1]

    def reset(self) -> None:
        """Make all rows as they are in `base`: at the beginning of a round."""
        self.table.embeddings_ND.copy_(self.base.embeddings_ND)
        self.table.sums.copy_(self.base.sums)

    def part(self, first: int, last: int, *, is_shard: bool) -> tuple[Array, Array]:
        """Values and sums in arrays of their own; a shard that they become has nothing to hear of them."""
        table = self.base if self.in_rounds else self.table
        sums = table.sums[first:last].cpu().numpy().copy()
        values = table.embeddings_ND[first:last].cpu().numpy().copy()
        if is_shard and not self.in_rounds:
            self.base.sums[first:last] = _tensor(sums, self.base.sums.device)
        return values, sums


def parameter_tables(model: Model, adagrad: Adagrad) -> dict[Name, Table]:
    """Move the parameters that are trained, and their sums, into one table per width."""
    by_width: defaultdict[int, list[str]] = defaultdict(list)
    for key, value in model.parameters.items():
        if key not in adagrad.frozen and value.numel():
            by_width[value.shape[-1] if value.dim() else 1].append(key)
    tables = {}
    for width, keys in by_width.items():
        values, sums = (
            torch.cat([held[key].reshape(-1, width) for key in keys])
            for held in (model.parameters, adagrad.sums)
        )
        begun = 0
        for key in keys:
            shape = model.parameters[key].shape
            rows = slice(begun, begun := begun + shape.numel() // width)
            model.parameters[key] = adagrad.parameters[key] = values[rows].view(shape)
            adagrad.sums[key] = sums[rows].view(shape)
        tables[PARAMETERS, width] = Table(values, sums)
    return tables


def _tensor(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(np.require(array, requirements="W")).to(device)


class SharedState:
    """A worker's copy of the shared state."""

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
        steps, num_steps = self.adagrad.steps, map(int, self.parts[STEPS].table.sums)
        steps.update(zip(steps, num_steps, strict=True))

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
        counts = list(self.adagrad.steps.values())
        self.parts[STEPS].table.sums.copy_(torch.tensor(counts, dtype=torch.float64))
        for shard in self._order():
            self._patiently(shard, self._push, at_rest=True, grant=grant if self.in_rounds else None)

    def write(self, path: str, version: int) -> None:
        """Write the state of the shards as of `version` to the folder `path`."""
        self.begin()
        for key, table in self.tables.items():
            self.files.write(key, table, version, path)
        self.context.write_model(copied_states(self.model, self.adagrad), version, path)

    def moved(self) -> dict[str, int]:
        """Bytes of rows pushed and pulled since the last call."""
        moved, self._num_bytes = self._num_bytes, 0
        return {"shared_bytes": moved}

    def num_bytes(self) -> int:
        """Size of the state."""
        return sum(len(part) * part.row_bytes for part in self.parts.values())

    def knows(self, origin: int) -> int:
        """The last revision that it has pulled of the shard with this origin."""
        return self._since[origin, False]

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
        holder = self._holder(shard)
        moved = {
            name: part.moved(*equal_part(len(part), shard, len(self._server.holders)))
            for name, part in self.parts.items()
            if at_rest or not part.at_rest
        }
        for number, batch in enumerate(self._batches(moved)):
            pushed = [self.parts[name].push(name, rows) for name, rows in batch]
            revision = self._call(holder, "push", pushed, grant, number)
            self._num_bytes += sum(message.nbytes for message in pushed)
            if grant is None:
                self._own[holder.origin].add(revision)
                for message in pushed:
                    self.parts[message.name].pushed(message)

    def _pull(self, shard: int, *, at_rest: bool) -> None:
        holder = self._holder(shard)
        for resting in (True, False) if at_rest else (False,):  # `knows` speaks of what comes last
            names = [name for name, part in self.parts.items() if part.at_rest == resting]
            since = self._since[holder.origin, resting]
            revision, changed = self._call(holder, "changed", names, since, self._own[holder.origin])
            for batch in self._batches(changed):
                arrays = self._call(holder, "read", batch)
                for (name, rows), (values, sums) in zip(batch, arrays, strict=True):
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
