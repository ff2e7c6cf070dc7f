"""Intermediate files of a run, in its work folder, which all workers reach.

The module that writes a file describes its content. A file is written under a temporary name and renamed, so
that a task may run twice. A task returns the checksums of the files that it has written; a run that continues
a failed run compares them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from etl.config import EtlConfig
from graphmill import storage
from graphmill.errors import NotFoundError, StorageError
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int32, Int64
from graphmill.storage.checksums import HashedInput, HashedOutput
from graphmill.storage.fs import explained

_BLOCK_BYTES = 1 << 20
_AGAIN = "run again: the steps that need the file are repeated"
_written: ContextVar[Checksums] = ContextVar("written")


class Tracked:
    """A task that also returns the checksums of the files that it has written."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__  # shown by Dask

    def __call__(self, *args: Any) -> tuple[Any, Checksums]:
        """Return the function's result, and the checksums of its intermediate files."""
        written: Checksums = {}
        token = _written.set(written)
        try:
            return self.function(*args), written
        finally:
            _written.reset(token)


@contextmanager
def new_file(uri: str, etl: EtlConfig) -> Iterator[pa.NativeFile]:
    """Open a stream that becomes the file at `uri`, without fsync: the checksum shows a lost file."""
    temporary = storage.temporary_sibling(uri)
    if not storage.is_dir(storage.parent(uri)):  # opening the file would create the folder again
        raise StorageError(f"{storage.parent(uri)}: the work folder is gone: the run that made it has ended")
    with (
        explained("write", temporary),
        storage.open_output(temporary, replication=etl.work_replication) as stream,
    ):
        hashed = HashedOutput(stream)
        with pa.BufferedOutputStream(pa.PythonFile(hashed, "w"), _BLOCK_BYTES) as buffered:
            yield buffered
    storage.move(temporary, uri)
    _written.get({})[uri] = hashed.checksum()


def is_intact(uri: str, checksum: str) -> bool:
    """Whether the file exists and still has its checksum."""
    try:
        with storage.open_input(uri) as stream:
            return HashedInput(stream).checksum(uri) == checksum
    except StorageError:
        return False


def write_batches(uri: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], etl: EtlConfig) -> None:
    """Write an Arrow file whose batches can be read one by one."""
    options = ipc.IpcWriteOptions(compression=_codec(uri, etl), use_threads=False)
    with new_file(uri, etl) as stream, ipc.new_file(stream, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def count_slots(ids: pa.Array, slots: Int64, num_slots: int) -> tuple[Int32, Int32]:
    """Count the ids of each slot [num_slots], and their bytes; `slots` has the slot of each id."""
    lengths = pc.binary_length(ids).to_numpy()
    num_ids = np.bincount(slots, minlength=num_slots)
    id_bytes = np.bincount(slots, weights=lengths, minlength=num_slots)
    return num_ids.astype(np.int32), id_bytes.astype(np.int32)


def slot_batches(batch: pa.RecordBatch, num_ids: Int32) -> Iterator[pa.RecordBatch]:
    """Cut ids that are sorted by slot into one batch per slot."""
    starts = np.cumsum(num_ids) - num_ids
    return (batch.slice(*each) for each in zip(starts.tolist(), num_ids.tolist(), strict=True))


def _codec(uri: str, etl: EtlConfig) -> str | None:
    """Return the compression of a file; on a local disk, the page cache is faster than compression."""
    if etl.spill_compression != "auto":
        return None if etl.spill_compression == "none" else etl.spill_compression
    return "lz4" if storage.local_path(uri) is None else None


@contextmanager
def _reading(uri: str) -> Iterator[pa.NativeFile]:
    """Open an intermediate file.

    Raises:
        StorageError: the file is gone or damaged, or cannot be read.
    """
    try:
        with storage.open_input(uri) as stream, explained("read", uri):
            yield stream
    except NotFoundError as error:
        raise StorageError(f"{uri}: this intermediate file is gone; {_AGAIN}") from error
    except (ValueError, IndexError, pa.ArrowSerializationError) as error:
        raise StorageError(f"{uri}: this intermediate file is damaged ({error}); {_AGAIN}") from error


def read_batches(uri: str, numbers: Sequence[int] | None = None) -> pa.Table:
    """Read the batches `numbers` of an Arrow file, or all."""
    with _reading(uri) as stream, ipc.open_file(stream) as reader:
        wanted = range(reader.num_record_batches) if numbers is None else numbers
        return pa.Table.from_batches([reader.get_batch(number) for number in wanted], reader.schema)


def iter_batches(uri: str) -> Iterator[pa.Table]:
    """Read the batches of an Arrow file, one at a time."""
    with _reading(uri) as stream, ipc.open_file(stream) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def read_values(uri: str, offset: int, count: int) -> Int32:
    """Read the int32 values [offset, offset + count) of a file."""
    with _reading(uri) as stream:
        return np.frombuffer(_read_at(stream, 4 * offset, 4 * count), np.int32)


def write_sorted_edges(uri: str, starts: Int64, records: Int32, etl: EtlConfig) -> None:
    """Write records [N, W] in the order of buckets; bucket b has rows starts[b] to starts[b + 1]."""
    with new_file(uri, etl) as stream:
        stream.write(np.ascontiguousarray(starts))
        stream.write(np.ascontiguousarray(records))


def read_sorted_edges(uri: str, buckets: range, num_buckets: int, width: int) -> tuple[Int64, Int32]:
    """Read starts [len(buckets) + 1], from 0, and records [N, width] of a run of buckets."""
    with _reading(uri) as stream:
        starts = np.frombuffer(_read_at(stream, 8 * buckets.start, 8 * (len(buckets) + 1)), np.int64)
        at = 8 * (num_buckets + 1) + 4 * width * int(starts[0])
        body = _read_at(stream, at, 4 * width * int(starts[-1] - starts[0]))
    return starts - starts[0], np.frombuffer(body, np.int32).reshape(-1, width)


def _read_at(stream: pa.NativeFile, offset: int, num_bytes: int) -> bytes:
    content: bytes = stream.read_at(num_bytes, offset)
    if len(content) != num_bytes:
        raise ValueError(f"expected {num_bytes} bytes at offset {offset}, found {len(content)}")
    return content
