"""ORC: cut into stripes.

Values of `char(n)` are stored with blanks up to n characters, which in SQL are no part of them: they go.
Source: https://orc.apache.org/specification/ORCv1/
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as paorc

from etl.tables.formats.base import OF_TEXT, FileRange, Head, OnBadLine, TableFormat, cut_groups
from graphmill import storage
from graphmill.config.sections.etl import FilesConfig
from graphmill.errors import RawTableError
from graphmill.formats.parquet.thrift import read_varint
from graphmill.formats.raw_tables import reading

_OF_TRANSACTIONS = ["operation", "originalTransaction", "bucket", "rowId", "currentTransaction", "row"]
_LIST, _CHAR = 10, 17


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with storage.open_input(uri) as stream, reading(uri):
        orc = paorc.ORCFile(stream)
        schema, num_rows, num_stripes = orc.schema, orc.nrows, orc.nstripes
    if schema.names == _OF_TRANSACTIONS:
        raise RawTableError(
            f"{uri}: expected rows, found changes of rows ({', '.join(schema.names)}): this is a file of a "
            "table of Hive with transactions, and others say which of its rows are deleted; export it in "
            "Hive: INSERT OVERWRITE TABLE plain SELECT COLUMNS FROM ITS_NAME; plain is an external table"
        )
    # The file has no row counts per stripe: assume equal stripes.
    mean = num_rows // max(num_stripes, 1)
    cuts = [(0, num, cut) for _, num, cut in cut_groups([mean] * num_stripes, chunk_rows)]
    return Head(schema.names, cuts, dict(zip(schema.names, schema.types, strict=True)))


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    with storage.open_input(file_range.uri) as stream:
        orc = paorc.ORCFile(stream)
        padded = _padded(orc.reader.serialized_file_tail())
        # ORC takes every dot for a path: a column with a dot in its name can only be read with all others.
        is_dotted = any("." in name for path in file_range.paths.values() for name in path)
        names = None if is_dotted else file_range.names
        for stripe in range(*(file_range.cut or (0, orc.nstripes))):
            batch = orc.read_stripe(stripe, names)
            if padded:
                rows = _stripped(batch.to_struct_array(), padded)
                batch = pa.RecordBatch.from_struct_array(rows)
            yield batch


def _padded(tail: bytes) -> Any:
    """Find the values of `char(n)` by the types in a file's tail: True, or by field of a struct or list."""
    footer = next(value for number, value in _fields(tail) if number == 2)
    types = [list(_fields(value)) for number, value in _fields(footer) if number == 4]

    def below(number: int) -> Any:
        kind = next(value for key, value in types[number] if key == 1)
        packed = next((value for key, value in types[number] if key == 2), b"")
        names = [""] if kind == _LIST else [value.decode() for key, value in types[number] if key == 3]
        children = zip(names, map(below, _varints(packed)), strict=False)
        return {name: inner for name, inner in children if inner} or kind == _CHAR

    return below(0)


def _varints(content: bytes) -> Iterator[int]:
    stream = BytesIO(content)
    while stream.tell() < len(content):
        yield read_varint(stream)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield numbers and values of a message of protobuf."""
    stream = BytesIO(message)
    while stream.tell() < len(message):
        key, value = read_varint(stream), read_varint(stream)
        yield key >> 3, stream.read(value) if key & 7 == 2 else value


def _stripped(values: pa.Array, padded: Any) -> pa.Array:
    if padded is True:
        return pc.ascii_rtrim(values, " ")
    if pa.types.is_list(values.type):
        inner = _stripped(values.values, padded[""])
        return pa.ListArray.from_arrays(values.offsets, inner, mask=values.is_null())
    columns = [
        _stripped(values.field(at), padded[field.name]) if field.name in padded else values.field(at)
        for at, field in enumerate(values.type)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(values.type), mask=values.is_null())


FORMAT = TableFormat((".orc",), "stripe", _read_head, _read, ignores=OF_TEXT)
