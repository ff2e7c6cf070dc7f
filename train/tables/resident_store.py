"""All rows in memory: on the device, or on a CPU in the host's memory."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import torch

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.partitions import PartitionKey
from graphmill.vocab import Bucket, Partition
from train.step.table import Table
from train.tables import memory
from train.tables.background import Background
from train.tables.partition_store import Store
from train.tables.run_context import CPU, RunContext


class ResidentStore(Store):
    """Holds one table of each type, with all its rows.

    With `writes_beside`, the files of a version are written from a copy of the tables, on the device if it
    has room for it.
    """

    def __init__(self, context: RunContext, *, writes_beside: bool = True) -> None:
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

    def enter(
        self, bucket: Bucket, then: Bucket | None, iteration: Iteration
    ) -> Mapping[PartitionKey, Table]:
        """The table of every type, with all its rows."""
        if not self._tables:
            self._tables = {(name, 0): self._load(rows) for name, rows in self._rows.items()}
        return self._tables

    def write_all(self, iteration: Iteration, background: Background) -> list[Future[None]]:
        """Begin to write all tables, or copies of them."""
        tables: Mapping[PartitionKey, Table] = self._tables
        if self.writes_beside:
            tables = {key: _copied(table, self._copy_device) for key, table in tables.items()}
        files = []
        for rows_of_partitions in self._rows.values():
            for key, rows in rows_of_partitions.items():
                part = tables[key[0], 0].rows(rows)
                files.append(background.submit(self.files.write, key, part, self.next_version, iteration))
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


def _copied(table: Table, device: torch.device) -> Table:
    copied = Table(table.embeddings_ND.to(device, copy=True), table.sums.to(device, copy=True))
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # another stream will read the copy
    return copied


def _rows_of(num_rows: Sequence[int], name: str) -> dict[PartitionKey, slice]:
    """The rows of each partition among all rows of its type."""
    rows, stop = {}, 0
    for partition, count in enumerate(num_rows):
        rows[name, Partition(partition)] = slice(stop, stop := stop + count)
    return rows
