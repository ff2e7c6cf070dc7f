"""Intermediate files of a run, in its work folder, which all workers reach.

The module that writes a file describes its content. A file is written under a temporary name and renamed, so
that a task may run twice. A task returns the checksums of the files that it has written; a run that continues
a failed run compares them.

A file of sections, from which a task reads adjacent ones with one open:

    section 0, section 1, ...       bytes; the module that writes the file says what
    int64 [sections + 1]            where each section starts in the file, and where the last one ends

A task's arguments go through the scheduler. So that they stay small, values that all tasks of a step share
(the settings, the names of chunks, the shards) are in a file that each process reads once, if the tasks are
many.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from pydantic import TypeAdapter

from graphmill import storage
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import NotFoundError, StorageError
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int64
from graphmill.storage.checksums import HashedOutput, of_file
from graphmill.storage.filesystems import explained

_BLOCK_BYTES = 1 << 20
_AGAIN = "run again: the steps that need the file are repeated"
_written: ContextVar[Checksums] = ContextVar("written")
Value = TypeVar("Value")

MAX_COPIED_BYTES = 1 << 17
"""Copies of a value that take no more than this in all go to the tasks: a file would take longer."""


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
    try:  # without its folder, which a late task of a run that has ended must not make again
        stream = storage.open_output(temporary, replication=etl.work_replication, make_parents=False)
    except NotFoundError as error:
        gone = f"{storage.parent(uri)}: the work folder is gone: the run that made it has ended"
        raise StorageError(gone) from error
    with storage.discarded_on_error(temporary):
        with explained("write", temporary), stream:
            hashed = HashedOutput(stream)
            with pa.BufferedOutputStream(pa.PythonFile(hashed, "w"), _BLOCK_BYTES) as buffered:
                yield buffered
        storage.move(temporary, uri)
    _written.get({})[uri] = hashed.checksum()


def first_damaged(checksums: Checksums) -> str | None:
    """Return the first of these files that is gone or has another checksum; None if all are intact."""
    for uri, checksum in checksums.items():
        try:
            if of_file(uri) != checksum:
                return uri
        except StorageError:
            return uri
    return None


def write_batches(uri: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], etl: EtlConfig) -> None:
    """Write an Arrow file whose batches can be read one by one."""
    options = ipc.IpcWriteOptions(compression=_codec(uri, etl), use_threads=False)
    with new_file(uri, etl) as stream, ipc.new_file(stream, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def count_slots(ids: pa.Array, slots: Int64, num_slots: int) -> tuple[Int64, Int64]:
    """Count the ids of each slot [num_slots], and their bytes; `slots` has the slot of each id."""
    lengths = pc.binary_length(ids).to_numpy()
    num_ids = np.bincount(slots, minlength=num_slots)
    id_bytes = np.bincount(slots, weights=lengths, minlength=num_slots)
    return num_ids, id_bytes.astype(np.int64)


def write_slots(
    uri: str, schema: pa.Schema, sorted_ids: Iterable[tuple[pa.RecordBatch, Int64]], etl: EtlConfig
) -> None:
    """Write ids slot by slot; a section is the Arrow message of a slot.

    `sorted_ids` has batches of ids in the order of their slots, each with the ids of each of its slots.
    """
    options = ipc.IpcWriteOptions(compression=_codec(uri, etl), use_threads=False)
    with (
        new_sections(uri, etl) as sections,
        ipc.new_stream(sections.stream, schema, options=options) as writer,
    ):
        for batch, num_ids in sorted_ids:
            starts = np.cumsum(num_ids) - num_ids
            for start, count in zip(starts.tolist(), num_ids.tolist(), strict=True):
                writer.write_batch(batch.slice(start, count))
                sections.end_section()


def slot_table(content: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """Return the ids of adjacent slots, as one batch each."""
    stream = pa.BufferReader(content)
    batches = []
    while stream.tell() < len(content):
        message = ipc.read_message(stream)
        if message.type == "record batch":  # the first section has the schema too
            batches.append(ipc.read_record_batch(message, schema))
    return pa.Table.from_batches(batches, schema)


def _codec(uri: str, etl: EtlConfig) -> str | None:
    """Return the compression of a file; on a local disk, the page cache is faster than compression."""
    if etl.spill_compression != "auto":
        return None if etl.spill_compression == "none" else etl.spill_compression
    return "lz4" if storage.local_path(uri) is None else None


@contextmanager
def _reading(uri: str) -> Iterator[pa.NativeFile]:
    try:
        with storage.open_input(uri) as stream, explained("read", uri):
            yield stream
    except NotFoundError as error:
        raise StorageError(f"{uri}: this intermediate file is gone; {_AGAIN}") from error
    except (ValueError, IndexError, pa.ArrowSerializationError) as error:
        raise StorageError(f"{uri}: this intermediate file is damaged ({error}); {_AGAIN}") from error


def read_batches(uri: str) -> pa.Table:
    """Read an Arrow file."""
    with _reading(uri) as stream, ipc.open_file(stream) as reader:
        return reader.read_all()


def iter_batches(uri: str) -> Iterator[pa.Table]:
    """Read the batches of an Arrow file, one at a time."""
    with _reading(uri) as stream, ipc.open_file(stream) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


class SectionsWriter:
    """Writes a new file, and notes where its sections start."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self._lengths: list[Int64] = []
        self._num_bytes = 0

    def append(self, content: memoryview, lengths: Int64) -> None:
        """Write sections of these lengths."""
        self.stream.write(content)
        self._lengths.append(lengths)
        self._num_bytes += len(content)

    def end_section(self) -> None:
        """End the section that the bytes written to `stream` since the last section make."""
        self._lengths.append(np.array([self.stream.tell() - self._num_bytes]))
        self._num_bytes = self.stream.tell()

    def write_starts(self) -> None:
        """Write where the sections start, and where the last one ends."""
        self.stream.write(np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]), dtype=np.int64))


@contextmanager
def new_sections(uri: str, etl: EtlConfig) -> Iterator[SectionsWriter]:
    """Open a new file of sections, for writing within the block."""
    with new_file(uri, etl) as stream:
        writer = SectionsWriter(stream)
        yield writer
        writer.write_starts()


def write_records(uri: str, starts: Int64, records: npt.NDArray[Any], etl: EtlConfig) -> None:
    """Write records [N, W]; section b is those from starts[b] to starts[b + 1]."""
    with new_file(uri, etl) as stream:
        stream.write(np.ascontiguousarray(records))
        stream.write(starts * np.int64(records.itemsize * (records.shape[1] if records.ndim > 1 else 1)))


class SectionsReader:
    """Reads adjacent sections of an open file."""

    def __init__(self, stream: pa.NativeFile, num_sections: int) -> None:
        self._stream = stream
        self._index_at = stream.size() - 8 * (num_sections + 1)
        if self._index_at < 0:
            raise ValueError(f"expected the starts of {num_sections} sections, found less")

    def starts(self, sections: range) -> Int64:
        """Read where each of the sections starts, and where the last one ends: [len(sections) + 1]."""
        at = self._index_at + 8 * sections.start
        return np.frombuffer(_read_at(self._stream, at, 8 * (len(sections) + 1)), np.int64)

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes [start, stop) of the file."""
        return _read_at(self._stream, start, stop - start)


@contextmanager
def open_sections(uri: str, num_sections: int) -> Iterator[SectionsReader]:
    """Open a file of `num_sections` sections."""
    with _reading(uri) as stream:
        yield SectionsReader(stream, num_sections)


def read_slots(uri: str, schema: pa.Schema, slots: range, num_slots: int) -> pa.Table:
    """Read the ids of adjacent slots of a file that `write_slots` has written."""
    with open_sections(uri, num_slots) as reader:
        starts = reader.starts(slots)
        return slot_table(reader.read(int(starts[0]), int(starts[-1])), schema)


def _read_at(stream: pa.NativeFile, offset: int, num_bytes: int) -> bytes:
    content: bytes = stream.read_at(num_bytes, offset)
    if len(content) != num_bytes:
        raise ValueError(f"expected {num_bytes} bytes at offset {offset}, found {len(content)}")
    return content


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value, or the file that holds it as JSON."""

    kind: Any
    value: Value | None = None
    uri: str = ""

    def read(self) -> Value:
        """Return the value."""
        return _read(self.kind, self.uri) if self.value is None else self.value


def share(uri: str, value: Value, num_tasks: int) -> Shared[Value]:
    """Return what to give to each of `num_tasks` tasks; if they are many, the value is written to a new file.

    A name stands for one value: processes keep what they have read.
    """
    kind: Any = type(value)
    content = json_of(kind).dump_json(value)
    if num_tasks * len(content) <= MAX_COPIED_BYTES:
        return Shared(kind, value)
    storage.write_text(uri, content.decode())
    return Shared(kind, uri=uri)


@cache
def json_of(kind: Any) -> TypeAdapter[Any]:
    """Return the reader and writer of a type as JSON, cached, because making them takes milliseconds."""
    return TypeAdapter(kind)


@lru_cache(maxsize=4)
def _read(kind: Any, uri: str) -> Any:
    return json_of(kind).validate_json(storage.read_bytes(uri))
