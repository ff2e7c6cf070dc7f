"""Partitions that move between the host's memory and the device, beside the steps.

    host      every partition, in pinned memory: written to files at the end of an iteration
    device    slots: for as many partitions as the plan says, the current bucket's among them; two more slots
              for a partition that comes and one that goes

The order of buckets, the streams, the files of a version: docs/explanation/gpu_inside.md. Without a GPU the
same moves happen one after the other. Host memory: all rows and sums once.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_keys, is_shared, keys_of
from graphmill.vocab import Bucket
from train.gpu.copies import Copies, Slot, num_floats_of
from train.step.step import Table, Tables
from train.tables import memory
from train.tables.background import Background
from train.tables.partition_store import Store
from train.tables.run_context import RunContext


def order_slots(config: Config, capacity: int) -> int | None:
    """Slots per partitioned type; None if they are too few to gain by another order of buckets."""
    num_types = sum(num > 1 for num in config.num_partitions.values())
    slots = capacity // max(num_types, 1)
    return slots if slots >= 2 else None


class DeviceBuffer(Store):
    """Holds all tables on the host, and the tables in use on the device."""

    writes_beside = True

    def __init__(self, context: RunContext, capacity: int) -> None:
        """`capacity` counts the partitions on the device, of all types that have several."""
        super().__init__(context.on_host())
        self.device, self.capacity = context.device, capacity
        self._host: dict[PartitionKey, Table] = {}
        self._on_device: dict[PartitionKey, Table] = {}
        self._slots: dict[PartitionKey, Slot] = {}  # of the partitions on the device that move
        self._free: list[Slot] = []  # the first has been free the longest
        self._left: dict[PartitionKey, Any] = {}  # events: the copy to the host is done
        self._ahead: set[PartitionKey] = set()  # on the device, for a bucket that has not begun
        self._changed: set[PartitionKey] = set()  # trained since they were copied to the device
        self._writing: dict[PartitionKey, Callable[[], None]] = {}  # waits for the file of the last version
        self._copies = Copies(self.device)

    def enter(self, bucket: Bucket, then: Bucket | None) -> Tables:
        """The tables of `bucket`; with `then`, starts to copy the partitions that are needed next."""
        if not self._host:
            self._load()
        self._copies.steps_done()
        self.uses.advance()
        needed = keys_of(self.config, bucket)
        self._ahead -= needed
        coming = sorted(needed - self._on_device.keys())
        self._make_room(needed, len(coming))
        for key in coming:
            self._move_in(key)
        self._copies.await_arrivals()
        self._changed |= needed
        if then is not None:
            self._look_ahead(keys_of(self.config, then))
        return self._on_device

    def write_all(self, background: Background) -> list[Future[None]]:
        """Bring all rows to the host, and begin to write them."""
        self._copies.steps_done()
        for key in sorted(self._changed):
            self._take(key)
        self._copies.wait()
        files: list[Future[None]] = []
        for key in sorted(self._host, key=lambda key: (key not in self._on_device, key)):
            files.append(background.submit(self.files.write, key, self._host[key], self.next_version))
            self._writing[key] = partial(background.result, files[-1])
        return files

    def _load(self) -> None:
        """Read all partitions to the host; copy those that never move to slots of their own."""
        load, pinned = self.files.load, self._copies.pinned
        self._host = {key: pinned(load(key, self.version)) for key in all_keys(self.config)}
        sizes = {key: num_floats_of(table) for key, table in self._host.items()}
        staying = {key: Slot(sizes[key], self.device) for key in sorted(sizes) if is_shared(self.config, key)}
        moving = [size for key, size in sizes.items() if key not in staying]
        num = min(self.capacity + memory.SPARE_SLOTS, len(moving))
        self._free = [Slot(max(moving), self.device) for _ in range(num)]
        self._copies.wait()  # earlier uses of the slots' memory
        for key, slot in staying.items():
            self._bring(key, slot)

    def _look_ahead(self, following: set[PartitionKey]) -> None:
        """Copy the partitions that the following bucket lacks, or else the partition that is needed next."""
        coming = following - self._on_device.keys()
        if not coming and not self._ahead and len(self._slots) <= self.capacity:
            others = [key for key in self._host if key not in self._on_device]
            key = min(others, key=self.uses.next_of, default=None)
            coming = {key} if key is not None and self.uses.is_left(key) else set()
        for key in sorted(coming)[: len(self._free)]:
            self._move_in(key)
            self._ahead.add(key)

    def _make_room(self, keep: set[PartitionKey], num: int) -> None:
        """Remove partitions until no more than the capacity are left, and `num` slots are free."""
        while len(self._slots) - len(self._ahead) + num > self.capacity or len(self._free) < num:
            others = self._slots.keys() - keep
            key = max(others - self._ahead or others, key=self.uses.next_of, default=None)
            if key is None:
                return  # the bucket needs all of them
            self._remove(key)

    def _remove(self, key: PartitionKey) -> None:
        if key in self._changed:
            self._take(key)
        self._ahead.discard(key)
        slot = self._slots.pop(key)
        slot.left = self._copies.passed()
        self._free.append(slot)
        del self._on_device[key]

    def _move_in(self, key: PartitionKey) -> None:
        self._slots[key] = self._free.pop(0)
        self._bring(key, self._slots[key])

    def _bring(self, key: PartitionKey, slot: Slot) -> None:
        self._on_device[key] = self._copies.bring(self._host[key], slot, (self._left.get(key),))
        self.num_read += 1

    def _take(self, key: PartitionKey) -> None:
        if (wait := self._writing.pop(key, None)) is not None:
            wait()
        self._left[key] = self._copies.take(self._on_device[key], self._host[key])
        self._changed.discard(key)
        self.num_written += 1
