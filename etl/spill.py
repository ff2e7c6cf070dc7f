"""The intermediate files of a run, in its work folder, which all workers reach.

What each holds stands at the head of the module that writes it. Every file is written under another name
and renamed, so that a task that runs twice does no harm. HDFS keeps one copy: a run that loses a file fails,
and is run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc

from etl.config import Compression
from graphmill import storage
from graphmill.errors import StorageError
from graphmill.storage.fs import explained

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@contextmanager
def new_file(uri: str) -> Iterator[pa.NativeFile]:
    """A stream that becomes the file at `uri`; not synced to the disk, as no later run reads it."""
    temporary = storage.temporary_sibling(uri)
    if not storage.is_dir(storage.parent(uri)):  # opening the file would make the folder anew
        raise StorageError(f"{storage.parent(uri)}: the work folder is gone: the run that made it has ended")
    with explained("write", temporary), storage.open_output(temporary, replication=1) as stream:
        yield stream
    storage.move(temporary, uri)


def write_batches(
    uri: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: Compression
) -> None:
    """Write an Arrow file whose batches can be read one by one."""
    codec = None if compression == "none" else compression
    options = ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with new_file(uri) as stream, ipc.new_file(stream, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_batches(uri: str, numbers: Sequence[int] | None = None) -> pa.Table:
    """The batches `numbers` of an Arrow file, or all."""
    with storage.open_input(uri) as stream, explained("read", uri), ipc.open_file(stream) as reader:
        wanted = range(reader.num_record_batches) if numbers is None else numbers
        return pa.Table.from_batches([reader.get_batch(number) for number in wanted], reader.schema)


def iter_batches(uri: str) -> Iterator[pa.Table]:
    """The batches of an Arrow file, one at a time."""
    with storage.open_input(uri) as stream, explained("read", uri), ipc.open_file(stream) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def read_ranges(uri: str, ranges: Iterable[tuple[int, int]]) -> list[Int32]:
    """The int32 values [offset, offset + count) of a file for each (offset, count)."""
    with storage.open_input(uri) as stream:
        return [
            np.frombuffer(_read_at(stream, uri, 4 * offset, 4 * count), np.int32) for offset, count in ranges
        ]


def write_sorted_edges(uri: str, starts: Int64, records: Int32) -> None:
    """Write records [N, W] that are in bucket order; bucket b has the rows starts[b] to starts[b + 1]."""
    with new_file(uri) as stream:
        stream.write(np.ascontiguousarray(starts))
        stream.write(np.ascontiguousarray(records))


def read_sorted_edges(uri: str, buckets: range, num_buckets: int, width: int) -> tuple[Int64, Int32]:
    """Starts [len(buckets) + 1], from 0, and records [N, width] of a run of buckets."""
    with storage.open_input(uri) as stream:
        head = _read_at(stream, uri, 8 * buckets.start, 8 * (len(buckets) + 1))
        starts = np.frombuffer(head, np.int64)
        record_bytes = 4 * width
        body_at = 8 * (num_buckets + 1)
        num_bytes = int(starts[-1] - starts[0]) * record_bytes
        body = _read_at(stream, uri, body_at + int(starts[0]) * record_bytes, num_bytes)
    return starts - starts[0], np.frombuffer(body, np.int32).reshape(-1, width)


def _read_at(stream: pa.NativeFile, uri: str, offset: int, num_bytes: int) -> bytes:
    with explained("read", uri):
        content: bytes = stream.read_at(num_bytes, offset)
    if len(content) != num_bytes:
        raise StorageError(
            f"{uri}: expected {num_bytes} bytes at offset {offset}, found {len(content)}: something else "
            "changed this run's intermediate files; run again"
        )
    return content
