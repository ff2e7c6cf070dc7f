"""Partitions of a run on one worker: read ahead from files, written behind.

While a bucket is trained, a thread writes the partitions that have left, then reads those that the next
bucket adds. So memory holds the current bucket's partitions, and either those that leave or those that come.
Without `train.prefetch` partitions leave first, then others come.
Types with one partition stay from their first bucket on.

A partition that has left is in a file of the checkpoint's next version, and is read back from this file in
the same iteration. The next version counts only once the whole iteration is committed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import torch

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.partitions import PartitionKey, all_keys, is_shared, keys_of
from graphmill.vocab import Bucket, Partition
from train.edges.visits import Blocks, Uses
from train.step.step import Table, Tables, joined
from train.tables import memory
from train.tables.background import Background
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import CPU, RunContext


class Store(ABC):
    """Holds the tables of a run on one worker: from files, in the host's memory, or on the device.

    Attributes:
        writes_beside: whether the next iteration may train while the files of a version are written.
        version: version of the checkpoint whose files have the rows that are not in memory.
        next_version: version that the current iteration makes.
        iteration: the current iteration.
        uses: the next use of each partition: the partition that is needed again last leaves first.
        num_read: partitions read or drawn so far, or brought to the device.
        num_written: partitions written so far, or taken from the device.
    """

    writes_beside = False

    def __init__(self, context: RunContext) -> None:
        """The context's device is the one that files are read to."""
        self.config = context.config
        self.version = self.next_version = context.version
        self.files = PartitionFiles(context)
        self.num_read = self.num_written = 0
        self.uses = Uses([])

    @property
    def is_in_memory(self) -> bool:
        """Tell whether all rows that were trained are in memory, and none in files of the next version."""
        return False

    def begin(self, order: Sequence[Bucket], iteration: Iteration) -> None:
        """Note the order of an iteration's buckets."""
        self.next_version += 1
        self.iteration = iteration
        self.uses = Uses([self.needed(bucket) for bucket in order])

    def needed(self, bucket: Bucket) -> set[PartitionKey]:
        """Keys of the partitions that a bucket needs."""
        return keys_of(self.config, bucket)

    @abstractmethod
    def enter(self, bucket: Bucket, then: Bucket | None) -> Tables:
        """The tables of `bucket`; the tables of `then`, if given, may come meanwhile."""

    @abstractmethod
    def write_all(self, background: Background) -> list[Future[None]]:
        """Write the partitions of the next version that are not written yet, as they are now.

        The tasks that are left to `background` are returned: they may run beside the next iteration.
        """

    def end_version(self) -> None:
        """Count the version that `write_all` has written, or has begun to write."""
        self.version = self.next_version


class PartitionStore(Store):
    """Holds the tables of the current bucket, and those that the next bucket adds; files have the others."""

    def __init__(self, context: RunContext, background: Background) -> None:
        super().__init__(context)
        self._background = background
        self._tables: dict[PartitionKey, Table] = {}
        self._coming: dict[PartitionKey, Future[Table]] = {}
        self._leaving: list[Future[None]] = []
        self._written: set[PartitionKey] = set()  # files of the next version, of the current iteration

    @property
    def is_in_memory(self) -> bool:
        """Tell whether no partition has left."""
        return not self._written

    def enter(self, bucket: Bucket, then: Bucket | None) -> Tables:
        """The tables of `bucket`; reading of the tables of `then`, if given, has begun."""
        needed = self.needed(bucket)
        ahead = self.needed(then) if then is not None else set()
        for key in sorted(self._tables.keys() - needed - ahead):
            if not is_shared(self.config, key):
                self._let_go(key)
        self.uses.advance()
        for key in sorted(needed):
            self._ask_for(key)
        for key in sorted(needed & self._coming.keys()):
            self._tables[key] = self._arrived(key)
        tables = self._given(bucket)
        for key in sorted(ahead):
            self._ask_for(key)
        return tables

    def write_all(self, background: Background) -> list[Future[None]]:
        """Write the partitions in memory, and copy those that the iteration never needed."""
        for key in sorted(self._tables):
            self._leaving.append(self._background.submit(self._write, key, self._tables[key]))
        self._settle(wait=True)
        for key in sorted(set(all_keys(self.config)) - self._written):
            self._write(key, self._load(key))
        return []

    def end_version(self) -> None:
        """Count the version, whose files are all written."""
        super().end_version()
        self._written.clear()

    def _given(self, bucket: Bucket) -> Tables:
        """The tables for the steps; the bucket's partitions are in memory."""
        return self._tables

    def _let_go(self, key: PartitionKey) -> None:
        self._settle(wait=False)
        # only the thread holds the table until it is written
        self._leaving.append(self._background.submit(self._write, key, self._tables.pop(key)))
        self._written.add(key)

    def _ask_for(self, key: PartitionKey) -> None:
        if key not in self._tables and key not in self._coming:
            self._coming[key] = self._background.submit(self._load, key)

    def _arrived(self, key: PartitionKey) -> Table:
        try:
            return self._background.result(self._coming.pop(key))
        except Exception:
            self._settle(wait=True)  # an earlier error of a write is the cause
            raise

    def _settle(self, *, wait: bool) -> None:
        # Asked once: a write that failed between two looks would be forgotten.
        ended = [future for future in self._leaving if wait or future.done()]
        self._leaving = [future for future in self._leaving if future not in ended]
        for future in ended:
            self._background.result(future)

    def _write(self, key: PartitionKey, table: Table) -> None:
        self.files.write(key, table, self.next_version)
        self._written.add(key)
        self.num_written += 1

    def _load(self, key: PartitionKey) -> Table:
        self.num_read += 1
        return self.files.load(key, self.next_version if key in self._written else self.version)


class BlockStore(PartitionStore):
    """Holds the partitions of the current visit, and those that the next visit adds; files have the others.

    The rows of a type are in one table. A partition that stays is copied from the table of a visit to that of
    the next; one that leaves keeps its table in memory until its file is written. Without `train.prefetch`
    the table of the last visit is gone before partitions come.
    """

    def __init__(self, context: RunContext, blocks: Blocks, background: Background) -> None:
        super().__init__(context, background)
        self.blocks = blocks

    def needed(self, bucket: Bucket) -> set[PartitionKey]:
        """Keys of the partitions that a visit needs."""
        return set(self.blocks.keys_of(bucket, self.iteration))

    def enter(self, bucket: Bucket, then: Bucket | None) -> Tables:
        """The table of each type, under its partition 0; reading of what `then` needs has begun."""
        self._settle(wait=True)  # what is being written keeps a whole table in memory
        needed = self.needed(bucket)
        if needed - self._tables.keys() - self._coming.keys():  # comes when the last table is gone
            for key in self._tables.keys() & needed:
                if not is_shared(self.config, key):
                    self._tables[key] = self._tables[key].copied()
        return super().enter(bucket, then)

    def _given(self, bucket: Bucket) -> Tables:
        """Join the partitions of each type; what the next visit needs is not in memory yet."""
        keys = self.blocks.keys_of(bucket, self.iteration)
        for key in self._tables.keys() - set(keys):  # waits for another visit: the last table must not
            self._tables[key] = self._tables[key].copied()
        whole = {key: self._tables[key] for key in keys if is_shared(self.config, key)}
        return whole | joined(self._tables, [key for key in keys if key not in whole])


class ResidentStore(Store):
    """Holds one table of each type, with all its rows.

    With `writes_beside`, the files of a version are written from a copy of the tables, on the device if it
    has room for it.
    """

    def __init__(self, context: RunContext, *, writes_beside: bool) -> None:
        super().__init__(context.on_host())
        self.writes_beside = writes_beside
        self.device = context.device
        self._rows = {name: _rows_of(context.num_rows[name], name) for name in self.config.entities}
        self._tables: dict[PartitionKey, Table] = {}
        self._copy_device = copy_device(context)

    @property
    def is_in_memory(self) -> bool:
        """All rows always are."""
        return True

    def enter(self, bucket: Bucket, then: Bucket | None) -> Tables:
        """The table of every type, with all its rows."""
        if not self._tables:
            self._tables = {(name, 0): self._load(rows) for name, rows in self._rows.items()}
        return self._tables

    def write_all(self, background: Background) -> list[Future[None]]:
        """Begin to write all tables, or copies of them."""
        tables = self._tables
        if self.writes_beside:
            tables = {key: table.copied(self._copy_device) for key, table in tables.items()}
            if self._copy_device.type == "cuda":  # another stream will read the copies
                torch.cuda.current_stream(self._copy_device).synchronize()
        files = []
        for rows_of_partitions in self._rows.values():
            for key, rows in rows_of_partitions.items():
                part = tables[key[0], 0].rows(rows)
                files.append(background.submit(self.files.write, key, part, self.next_version))
                self.num_written += 1
        return files

    def _load(self, rows_of_partitions: Mapping[PartitionKey, slice]) -> Table:
        table: Table | None = None
        num_rows = max(rows.stop for rows in rows_of_partitions.values())
        for key, rows in rows_of_partitions.items():
            part = self.files.load(key, self.version)
            self.num_read += 1
            table = table or part.like(num_rows, self.device)
            table.fill(rows, part)
        assert table is not None  # a type has a partition
        return table


def copy_device(context: RunContext) -> torch.device:
    """Choose the device for the copies of all tables: theirs, if it has room for them."""
    if context.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(context.device)
        if memory.resident_bytes(context) + memory.rows_bytes(context) > memory.SHARE * free:
            return CPU
    return context.device


def _rows_of(num_rows: Sequence[int], name: str) -> dict[PartitionKey, slice]:
    rows, stop = {}, 0
    for partition, count in enumerate(num_rows):
        rows[name, Partition(partition)] = slice(stop, stop := stop + count)
    return rows
