"""Parquet tables with a column of vectors, whose numbers are written directly from memory.

pyarrow computes repetition and definition levels for every number of a list, which takes several times as
long as writing the number. The levels are the same on every page, if all vectors have one length and no
nulls. So this module builds the pages of vectors: header with a CRC32, levels and the bytes of the array
(PLAIN, not compressed). pyarrow writes all other columns. The last footer is pyarrow's, with the column of
vectors added:

    PAR1  { the other columns, pages of vectors: a row group }...  footer of the others alone  footer  PAR1

Readers read the last footer only. Vectors come first in a row group if they are the schema's first column:
Spark, Hive and Trino assume that a group begins where its first column begins, and each task reads the groups
whose middle, computed so, lies in its part of the file. Sources: parquet-format's
README.md, parquet.thrift, Encodings.md (the hybrid of runs and bit-packing); parquet-java's
ParquetMetadataConverter (filterFileMetaDataByMidpoint).
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill.errors import FormatError
from graphmill.formats.parquet import thrift
from graphmill.formats.parquet.thrift import Struct, ThriftKind, encode, varint

Array = npt.NDArray[Any]

# Numbers of parquet.thrift
_PHYSICAL = {pa.int32(): 1, pa.int64(): 2, pa.float32(): 4, pa.float64(): 5}
_DATA_PAGE = _PLAIN = _UNCOMPRESSED = 0
_RLE = 3

_MAGIC = b"PAR1"
PAGE_BYTES = 1 << 20
_WRITE_BATCH = 1 << 16  # values that pyarrow encodes at a time: 10 % faster than its default of 1024

Column: TypeAlias = pa.Array | pa.ChunkedArray | Array


class ParquetTable(Protocol):
    """A parquet table, open for writing."""

    def append(self, columns: Sequence[Column]) -> None:
        """Write rows as one row group: values are arrays [n, D] or [n], other columns are Arrow's."""


@contextmanager
def new_table(
    stream: pa.NativeFile, schema: pa.Schema, *, is_plain: bool, **options: Any
) -> Iterator[ParquetTable]:
    """Open a table for appending within the block.

    With `is_plain`, lists are PLAIN and not compressed. `options` are pyarrow's, for the columns that pyarrow
    writes.
    """
    options["write_page_checksum"] = True
    place = next((place for place, kind in enumerate(schema.types) if _is_plain(kind)), None)
    if place is None or not is_plain:
        with pq.ParquetWriter(stream, schema, write_batch_size=_WRITE_BATCH, **options) as parquet:
            yield _ArrowTable(parquet)
        return
    with pq.ParquetWriter(stream, schema.remove(place), **options) as others:
        table = _VectorTable(stream, schema, place, others)
        yield table
    # Not by `metadata_collector`: a missing footer would hide the original write error.
    footer = encode(table.footer(_thrift_of(others.writer.metadata)))
    stream.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)


def _is_plain(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and kind.value_type in _PHYSICAL


def as_arrow(columns: Sequence[Column], schema: pa.Schema) -> list[pa.Array | pa.ChunkedArray]:
    """The columns as Arrow arrays; values [n, D] become lists, or with a binary type their bytes."""
    return [
        _as_array(column, kind) if isinstance(column, np.ndarray) else column
        for column, kind in zip(columns, schema.types, strict=True)
    ]


def _as_array(values: Array, kind: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(np.ascontiguousarray(values)).cast(kind)
    num_rows, width = values.shape
    if pa.types.is_binary(kind):
        buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), num_rows, buffers).cast(kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1)).cast(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, flat, type=kind)


class _ArrowTable:
    def __init__(self, parquet: pq.ParquetWriter) -> None:
        self._parquet = parquet

    def append(self, columns: Sequence[Column]) -> None:
        rows = pa.Table.from_arrays(as_arrow(columns, self._parquet.schema), schema=self._parquet.schema)
        self._parquet.write_table(rows, max(len(rows), 1))


class _VectorTable:
    def __init__(
        self, stream: pa.NativeFile, schema: pa.Schema, place: int, others: pq.ParquetWriter
    ) -> None:
        self._stream, self._place, self._others = stream, place, others
        self._value_type = schema.field(place).type.value_type
        self._width = 0
        self._chunks: list[Struct] = []
        sink = io.BytesIO()
        pq.write_table(schema.empty_table(), sink)
        with pq.ParquetFile(sink) as empty:
            self._leaf, self._footer = empty.schema.column(place), _thrift_of(empty.metadata)

    def append(self, columns: Sequence[Column]) -> None:
        others = list(columns)
        vectors_ND = np.ascontiguousarray(others.pop(self._place), self._value_type.to_pandas_dtype())
        num_rows, width = vectors_ND.shape
        if not num_rows:
            return
        self._width = self._width or width
        if width != self._width or not width:
            raise FormatError(f"expected vectors of length {self._width or 1}, found {width}")
        if self._place == 0:
            self._write(vectors_ND)
        self._others.write_table(pa.Table.from_arrays(others, schema=self._others.schema), num_rows)
        if self._place > 0:
            self._write(vectors_ND)

    def _write(self, vectors_ND: Array) -> None:
        num_rows, width = vectors_ND.shape
        first_byte = self._stream.tell()
        page_rows = max(1, PAGE_BYTES // vectors_ND[0].nbytes)
        for first in range(0, num_rows, page_rows):
            page = vectors_ND[first : first + page_rows]
            levels, crc = _levels(len(page), width, self._leaf.max_definition_level)
            crc = zlib.crc32(page.data, crc)
            self._stream.write(_header(page.size, len(levels) + page.nbytes, crc) + levels)
            self._stream.write(page)
        self._chunks.append(self._chunk(first_byte, vectors_ND.size))

    def _chunk(self, first_byte: int, num_values: int) -> Struct:
        num_bytes = self._stream.tell() - first_byte
        metadata = {
            1: (ThriftKind.I32, _PHYSICAL[self._value_type]),
            2: (ThriftKind.LIST, (ThriftKind.I32, [_PLAIN, _RLE])),
            3: (ThriftKind.LIST, (ThriftKind.BINARY, self._leaf.path.encode().split(b"."))),
            4: (ThriftKind.I32, _UNCOMPRESSED),
            5: (ThriftKind.I64, num_values),
            6: (ThriftKind.I64, num_bytes),  # before compression
            7: (ThriftKind.I64, num_bytes),
            9: (ThriftKind.I64, first_byte),
        }
        return {2: (ThriftKind.I64, 0), 3: (ThriftKind.STRUCT, metadata)}

    def footer(self, others: Struct) -> Struct:
        """The FileMetaData of the whole table, from the FileMetaData of the other columns."""
        _, groups = others[4][1]
        for group, chunk in zip(groups, self._chunks, strict=True):
            num_bytes, first_byte = chunk[3][1][7][1], chunk[3][1][9][1]
            group[1][1][1].insert(self._place, chunk)
            for number in (2, 6):  # total_byte_size, total_compressed_size
                group[number] = ThriftKind.I64, group[number][1] + num_bytes
            if self._place == 0:
                group[5] = ThriftKind.I64, first_byte  # file_offset
        return self._footer | {3: others[3], 4: others[4]}  # num_rows, row_groups


@lru_cache(maxsize=16)
def _levels(num_rows: int, width: int, def_level: int) -> tuple[bytes, int]:
    """A page's levels and their CRC32: each row begins a list, and no number is null."""
    others = varint((width - 1) << 1) + b"\1" if width > 1 else b""  # a run: twice its length, then its value
    repetition = (b"\2\0" + others) * num_rows
    definition = varint(num_rows * width << 1) + bytes([def_level])
    levels = b"".join(len(level).to_bytes(4, "little") + level for level in (repetition, definition))
    return levels, zlib.crc32(levels)


def _header(num_values: int, num_bytes: int, crc: int) -> bytes:
    """A PageHeader; parquet has signed integers alone."""
    data_page = {
        1: (ThriftKind.I32, num_values),
        2: (ThriftKind.I32, _PLAIN),
        3: (ThriftKind.I32, _RLE),  # definition levels
        4: (ThriftKind.I32, _RLE),  # repetition levels
    }
    header = {
        1: (ThriftKind.I32, _DATA_PAGE),
        2: (ThriftKind.I32, num_bytes),  # before compression
        3: (ThriftKind.I32, num_bytes),
        4: (ThriftKind.I32, crc - (crc >> 31 << 32)),
        5: (ThriftKind.STRUCT, data_page),
    }
    return encode(header)


def _thrift_of(metadata: pq.FileMetaData) -> Struct:
    sink = io.BytesIO()
    metadata.write_metadata_file(sink)
    sink.seek(len(_MAGIC))
    return thrift.read(sink)
