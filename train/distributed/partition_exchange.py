"""A worker's partitions: from its memory, from another worker's memory, or from a file.

When they come and go: docs/explanation/distributed_training.md.

Resting partitions take at most `train.exchange_bytes`. Beyond it the oldest that are in files are dropped;
the worker waits for the file of one that is in none yet.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

import torch
from distributed import Worker

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import PartitionKey
from graphmill.errors import NotFoundError
from train.distributed.messages import PartitionCopies, SavedFile, call_actor
from train.distributed.partition_holder import Entry, PartitionHolder, Resting, bytes_of
from train.gpu.copies import on_device
from train.run.run_metrics import BYTES, PARTITIONS
from train.step.step import Table, Tables
from train.tables.background import Background
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import CPU

PIECE_BYTES = 64 << 20  # of a partition that another worker sends
ONE_COPY = 1  # of a temporary file on HDFS

ReportSaved = Callable[[PartitionKey, SavedFile], None]

log = logging.getLogger("graphmill")


class PartitionLostError(Exception):
    """A partition is nowhere: its worker was lost, and the coordinator has not noticed yet."""


class PartitionExchange:
    """Gets and leaves the partitions of one worker."""

    def __init__(
        self,
        files: PartitionFiles,
        holder: PartitionHolder,
        worker: Worker,
        report_saved: ReportSaved,
        budget_bytes: int,
    ) -> None:
        self.files, self.holder = files, holder
        self._moved: Counter[str] = Counter()
        self._moved_lock = threading.Lock()
        self._worker, self._report_saved, self._budget_bytes = worker, report_saved, budget_bytes
        self._ahead, self._behind = Background(), Background()
        self._coming: dict[Entry, Future[Table]] = {}
        self._wanted: set[Entry] = set()  # of the bucket that follows
        self._writing: dict[Entry, Future[None]] = {}

    def take(self, sources: Mapping[PartitionKey, PartitionCopies]) -> dict[PartitionKey, Table]:
        """The tables of a bucket, which nobody else gets until they are put back."""
        entries = {(key, source.revision): source for key, source in sources.items()}
        coming, self._coming, self._wanted = self._coming, {}, set()
        for entry in coming.keys() - entries.keys():
            coming[entry].cancel()  # promised, and then given to another worker
        tables: dict[PartitionKey, Table] = {}
        own: dict[Entry, Resting] = {}
        for (key, revision), source in sorted(entries.items()):
            entry = key, revision
            self._await_file(entry, cancel=True)
            if (resting := self.holder.take(entry)) is not None:
                own[entry] = resting
                tables[key] = on_device(resting.table, self.files.context.device)
            elif entry in coming and coming[entry].exception() is None:
                tables[key] = coming[entry].result()
            else:
                try:
                    tables[key] = self._obtain(key, source)
                except PartitionLostError:
                    for returned in own.items():
                        self.holder.put(*returned)
                    raise
        return tables

    def read_ahead(self, sources: Mapping[PartitionKey, PartitionCopies]) -> None:
        """Begin to get the partitions that the following bucket adds, beside the training."""
        for key, source in sorted(sources.items()):
            entry = key, source.revision
            self._wanted.add(entry)
            if self.holder.get(entry) is None:
                self._coming[entry] = self._ahead.submit(self._obtain, key, source)

    def put(self, tables: Tables, revision: int, folder: str, version: int) -> None:
        """Leave the trained tables of a bucket, as of the next `version`; others may fetch them."""
        for key, table in tables.items():
            self.holder.put((key, revision), Resting(table, folder, version, is_safe=False))

    def write_behind(self, version: int) -> None:
        """Begin to write the resting tables that are in no file, and keep within the budget.

        `version` is the committed one: of a table that should have become a file of it, there is a newer one.
        """
        for entry in [entry for entry, future in self._writing.items() if future.done()]:
            self._await_file(entry)  # raises the error of a write that has failed
        for entry, resting in self.holder.resting():
            if not resting.is_safe and resting.version <= version:
                self.holder.take(entry)
            elif not resting.is_safe and entry not in self._writing:
                self._writing[entry] = self._behind.submit(self._write_resting, entry, resting)
        resting_bytes = sum(bytes_of(resting.table) for _, resting in self.holder.resting())
        for entry, resting in self.holder.resting():
            if resting_bytes <= self._budget_bytes and not (resting.is_safe and resting.is_fetched):
                continue
            if entry not in self._wanted:
                self._await_file(entry)
                self.holder.take(entry)
                resting_bytes -= bytes_of(resting.table)

    def save(
        self,
        sources: Mapping[PartitionKey, PartitionCopies],
        folder: str,
        version: int,
        *,
        replication: int | None = None,
    ) -> list[tuple[PartitionKey, SavedFile]]:
        """Write revisions of partitions, from memory or from where they are; returns the new files.

        A file of a temporary folder is as good as another where storage makes no copies.
        """
        saved = []
        for key, source in sorted(sources.items()):
            entry = key, source.revision
            self._await_file(entry, cancel=True)
            resting = self.holder.get(entry)
            if resting is not None and resting.is_safe and not storage.replicates(folder):
                continue  # it was being written behind
            table = self._obtain(key, source) if resting is None else resting.table
            saved.append((key, self._write(entry, table, folder, version, replication)))
            if resting is not None:
                resting.is_safe = True
        return saved

    def moved(self) -> dict[str, int]:
        """Count what has moved since the last call, by the names of a visit's figures."""
        with self._moved_lock:
            moved, self._moved = self._moved, Counter()
        return {name: moved[name] for name in PARTITIONS + BYTES}

    def close(self) -> None:
        """End the threads: what has not begun to be written is of no use any more."""
        for entry in list(self._writing):
            self._await_file(entry, cancel=True)
        self._ahead.close()
        self._behind.close()

    def _obtain(self, key: PartitionKey, source: PartitionCopies) -> Table:
        if source.holder and (table := self._fetch(key, source)) is not None:
            self._count(fetched_bytes=bytes_of(table))
            return on_device(table, self.files.context.device)
        if source.file is None:
            raise PartitionLostError(f"{key[0]!r}, partition {key[1]}: {source.address} has it no more")
        table = self.files.load(key, source.file.version, source.file.folder)
        self._count(partitions_read=1, read_bytes=bytes_of(table) if source.file.version else 0)
        return table

    def _fetch(self, key: PartitionKey, source: PartitionCopies) -> Table | None:
        """The table from another worker, piece by piece; None if that worker does not have it any more."""
        rows = partial(call_actor, self._worker, source.address, source.holder, "rows", key, source.revision)
        table: Table | None = None
        num_rows, step, start = self.files.context.num_rows[key[0]][key[1]], 1, 0
        try:
            while start < num_rows or table is None:
                piece = rows(start, start + step)
                if piece is None:
                    return None
                if table is None:  # the first row tells the shapes
                    table = Table(torch.from_numpy(piece[0]), torch.from_numpy(piece[1])).like(num_rows, CPU)
                    step = max(1, PIECE_BYTES // max(1, sum(array[:1].nbytes for array in piece)))
                stop = start + len(piece[0])
                table.embeddings_ND.numpy()[start:stop] = piece[0]
                table.sums.numpy()[start:stop] = piece[1]
                start = stop if stop > start else num_rows
        except (OSError, RuntimeError, KeyError) as error:  # Dask's errors for a worker or actor that is gone
            log.info("training: %r, partition %d: not from %s: %s", *key, source.address, error)
            return None
        return table

    def _write_resting(self, entry: Entry, resting: Resting) -> None:
        resting.table = on_device(resting.table, CPU)
        try:
            saved = self._write(entry, resting.table, resting.folder, resting.version, ONE_COPY)
        except NotFoundError as error:  # the version was committed from newer copies, its folder deleted
            log.debug("training: %r, partition %d: nobody needs the file: %s", *entry[0], error)
            return
        self._report_saved(entry[0], saved)
        resting.is_safe = True

    def _write(
        self, entry: Entry, table: Table, folder: str, version: int, replication: int | None
    ) -> SavedFile:
        key, revision = entry
        self.files.write(key, table, version, folder, replication=replication)
        self._count(partitions_written=1, written_bytes=bytes_of(table))
        checksum = self.files.context.checksums.pop(pbg.embeddings_uri(folder, *key, version))
        return SavedFile(revision, folder, version, checksum, replication is None)

    def _count(self, **moved: int) -> None:
        with self._moved_lock:
            self._moved.update(moved)

    def _await_file(self, entry: Entry, *, cancel: bool = False) -> None:
        """Wait for the file of a table that is being written; with `cancel`, unless it has not begun."""
        future = self._writing.pop(entry, None)
        if future is not None and not (cancel and future.cancel()):
            self._behind.result(future)
