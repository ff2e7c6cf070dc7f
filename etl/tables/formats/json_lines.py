"""JSON, one object per line: cut into ranges of bytes."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pajson

from etl.config import FilesConfig
from etl.tables.formats.base import FileRange, Head, OnBadLine, TableFormat, reading
from etl.tables.formats.lines import cut_lines, open_text
from etl.tables.formats.rows import Fault, Rows, Syntax


def _reads(text: bytes) -> pajson.ReadOptions:
    return pajson.ReadOptions(use_threads=False, block_size=len(text))


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with open_text(uri, table) as stream, reading(uri):
        rows = Rows(stream.read, Syntax(comment=table.comment), uri)
        if not rows.first(is_header=True)[0]:
            return Head([], [])
        cuts = cut_lines(uri, table, rows.text, 0, chunk_rows, cuttable=True)
        lines = next(each for each in rows.blocks() if not isinstance(each, Fault))
        schema = pajson.read_json(pa.BufferReader(lines), _reads(lines)).schema
    types = {name: _type_to_read(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    return Head(schema.names, cuts, types)


def _type_to_read(found: pa.DataType) -> pa.DataType:
    """Return the type to read a column as: never a time, which pyarrow guesses and JSON does not have."""
    if pa.types.is_list(found):
        return pa.list_(_type_to_read(found.value_type))
    if pa.types.is_struct(found):
        return pa.struct([(field.name, _type_to_read(field.type)) for field in found])
    return found if pa.types.is_integer(found) or pa.types.is_floating(found) else pa.string()


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    parsing = pajson.ParseOptions(
        explicit_schema=pa.schema(file_range.types), unexpected_field_behavior="ignore"
    )
    with open_text(file_range.uri, file_range.table, file_range.cut) as stream:
        for block in Rows(stream.read, Syntax(comment=file_range.table.comment), file_range.uri).blocks():
            if not isinstance(block, Fault) and block.strip():
                yield from pajson.read_json(pa.BufferReader(block), _reads(block), parsing).to_batches()


FORMAT = TableFormat((".json", ".jsonl", ".ndjson"), "byte", _read_head, _read)
