"""Partitions that come and go between the host's memory and the device, beside the steps.

    host      every partition, in pinned memory: written to files when the iteration is committed
    device    slots: as many partitions as `train.device_partitions` says, those of the current bucket among
              them, and besides one that comes and one that goes

While a bucket is trained, one stream brings the partition that is needed next, another takes away what has
been trained; what is taken away is what is needed again last (Belady), which the order of buckets tells: an
order of buffer elimination, in which all buckets of a partition that leaves come before it does, so that the
next one has all that time to come. Without a GPU the same moves happen one after the other.

Host memory: all rows and sums once. With `train.device_partitions: 0` partitions come from files instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphmill.config import Config
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket
from train.edges.bucket_order import Uses
from train.edges.partitions import PartitionKey, all_keys, is_shared, keys_of
from train.gpu.copies import Copies, Slot, num_floats_of
from train.step.table import Table
from train.tables import memory
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext


def order_slots(config: Config, capacity: int) -> int | None:
    """How many of each type's partitions that is; None where too few for another order of buckets to help."""
    num_types = sum(entity.num_partitions > 1 for entity in config.entities.values())
    slots = capacity // max(num_types, 1)
    return slots if slots >= 2 else None


class DeviceBuffer:
    """Holds all tables on the host, and the ones at work on the device.

    Attributes:
        num_read, num_written: partitions that came to the device, and that were taken from it, so far.
    """

    def __init__(self, context: RunContext, version: int, capacity: int) -> None:
        """`capacity` counts the partitions on the device, of all types that have several."""
        self.config, self.device, self.version = context.config, context.device, version
        self.files = PartitionFiles(context.on_host())
        self.capacity = capacity
        self.num_read = self.num_written = 0
        self._host: dict[PartitionKey, Table] = {}
        self._here: dict[PartitionKey, Table] = {}
        self._slots: dict[PartitionKey, Slot] = {}  # of what is here and moves
        self._free: list[Slot] = []  # the first has been so the longest
        self._left: dict[PartitionKey, Any] = {}  # events: when a partition is whole on the host again
        self._ahead: set[PartitionKey] = set()  # here, for a bucket that has not come yet
        self._changed: set[PartitionKey] = set()  # trained since they came
        self._uses = Uses(context.config, [])
        self._copies = Copies(self.device)

    def begin(self, order: Sequence[Bucket]) -> None:
        """Note the order of an iteration's buckets."""
        self._uses = Uses(self.config, order)
        if not self._host:
            self._load()

    def enter(
        self, bucket: Bucket, then: Bucket | None, iteration: Iteration
    ) -> Mapping[PartitionKey, Table]:
        """The tables of `bucket`; with `then`, what is needed next is on its way when this returns."""
        self._copies.steps_done()
        self._uses.advance()
        needed = keys_of(self.config, bucket)
        self._ahead -= needed
        coming = sorted(needed - self._here.keys())
        self._make_room(needed, len(coming))
        for key in coming:
            self._bring(key)
        self._copies.await_arrivals()
        self._changed |= needed
        if then is not None:
            self._look_ahead(keys_of(self.config, then))
        return self._here

    def write_all(self, iteration: Iteration) -> None:
        """Write the next version."""
        self._copies.steps_done()
        for key in sorted(self._changed):
            self._take(key)
        self._copies.settle()
        for key, table in sorted(self._host.items()):
            self.files.write(key, table, self.version + 1, iteration)

    def committed(self) -> None:
        """The next version counts now."""
        self.version += 1

    def _load(self) -> None:
        """Fill the host's memory; slots for the largest partition, and a place for each that never moves."""
        self._host = {
            key: self._copies.pinned(self.files.load(key, self.version)) for key in all_keys(self.config)
        }
        sizes = {key: num_floats_of(table) for key, table in self._host.items()}
        places = {key: Slot(sizes[key], self.device) for key in sorted(sizes) if is_shared(self.config, key)}
        moving = [size for key, size in sizes.items() if key not in places]
        num = min(self.capacity + memory.SPARE_SLOTS, len(moving))
        self._free = [Slot(max(moving), self.device) for _ in range(num)]
        self._copies.settle()  # what used their memory before
        for key, slot in places.items():
            self._here[key] = self._copies.bring(self._host[key], slot, ())
            self.num_read += 1

    def _look_ahead(self, following: set[PartitionKey]) -> None:
        """Bring what the following bucket lacks, or else whatever is needed next."""
        coming = following - self._here.keys()
        if not coming and not self._ahead and len(self._slots) <= self.capacity:
            others = [key for key in self._host if key not in self._here]
            key = min(others, key=self._uses.next_of, default=None)
            coming = {key} if key is not None and self._uses.is_left(key) else set()
        for key in sorted(coming)[: len(self._free)]:
            self._bring(key)
            self._ahead.add(key)

    def _make_room(self, keep: set[PartitionKey], num: int) -> None:
        """Let partitions go until there are no more than the capacity, and `num` slots are free."""
        while len(self._slots) - len(self._ahead) + num > self.capacity or len(self._free) < num:
            others = self._slots.keys() - keep
            key = max(others - self._ahead or others, key=self._uses.next_of, default=None)
            if key is None:
                return  # the bucket needs them all
            self._let_go(key)

    def _let_go(self, key: PartitionKey) -> None:
        if key in self._changed:
            self._take(key)
        self._ahead.discard(key)
        slot = self._slots.pop(key)
        slot.left = self._copies.passed()
        self._free.append(slot)
        del self._here[key]

    def _bring(self, key: PartitionKey) -> None:
        slot = self._free.pop(0)
        self._slots[key] = slot
        self._here[key] = self._copies.bring(self._host[key], slot, (self._left.get(key),))
        self.num_read += 1

    def _take(self, key: PartitionKey) -> None:
        self._left[key] = self._copies.take(self._here[key], self._host[key])
        self._changed.discard(key)
        self.num_written += 1
