"""JSON, one object per line: cut into ranges of bytes.

Only the columns that are asked for are read; of the others no type matters. pyarrow reads what has the types
of the file's first rows. Blocks that it refuses, or that have not one row per line, are read line by line.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from etl.tables.formats.base import OF_DELIMITED, BadLine, FileRange, Head, OnBadLine, TableFormat
from etl.tables.formats.json_values import NoRowError, parsed, row_of, types_of
from etl.tables.formats.lines import cut_lines
from etl.tables.nested import Path
from graphmill.config.sections.etl import FilesConfig, WholeTableConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.opened import open_text
from graphmill.formats.raw_tables.rows import Fault, RawRows, Syntax

_LONG_NUMBER = re.compile(rb"\d{19}")


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with open_text(uri, table.encoding) as stream, reading(uri):
        rows = RawRows(stream.read, Syntax(comment=table.comment), uri)
        if not rows.first(is_header=True)[0]:
            return Head([], [])
        cuts = cut_lines(uri, table, rows.text, 0, chunk_rows, cuttable=True)
        types = next(
            _types(uri, each) for each in rows.blocks() if not isinstance(each, Fault) and each.strip()
        )
    return Head([*types], cuts, types)


def _types(uri: str, block: bytes) -> dict[str, pa.DataType]:
    with suppress(pa.ArrowInvalid):
        schema = pajson.read_json(pa.BufferReader(block), _reads(block)).schema
        # pyarrow takes whole numbers beyond 64 bits for fractions.
        if not (any("double" in str(kind) for kind in schema.types) and _LONG_NUMBER.search(block)):
            return {name: _type_to_read(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    objects: list[dict[str, Any]] = []
    for line in _lines(block):
        try:
            objects.append(parsed(line))
        except NoRowError as error:
            problem = error
    if not objects:
        raise RawTableError(f"{uri}: row 1: {problem}") from problem
    return types_of(objects)


def _type_to_read(found: pa.DataType) -> pa.DataType:
    """Return the type to read a column as: never a time, which pyarrow guesses and JSON does not have."""
    if pa.types.is_list(found):
        return pa.list_(_type_to_read(found.value_type))
    if pa.types.is_struct(found):
        return pa.struct([(field.name, _type_to_read(field.type)) for field in found])
    is_plain = pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_boolean(found)
    return found if is_plain else pa.string()


def _reads(block: bytes) -> pajson.ReadOptions:
    return pajson.ReadOptions(use_threads=False, block_size=len(block))


def _lines(block: bytes) -> list[bytes]:
    return [line for line in block.splitlines() if line.strip()]


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    uri, table = file_range.uri, file_range.table
    takes_others = not isinstance(table, WholeTableConfig)
    fields = {file_range.nested.get(name, (column,)): name for name, column in file_range.columns.items()}
    ids = {
        path for path, name in fields.items() if takes_others and name != "weight" and name in table.columns()
    }
    schema, exact = (_schema(file_range.types, ids, number) for number in (pa.string(), pa.int64()))
    parsing = pajson.ParseOptions(
        explicit_schema=exact, unexpected_field_behavior="ignore" if takes_others else "error"
    )
    num_rows = 0
    with open_text(uri, table.encoding, file_range.cut) as stream:
        for block in RawRows(stream.read, Syntax(comment=table.comment), uri).blocks():
            if isinstance(block, Fault) or not block.strip():
                continue
            rows = _parsed(block, parsing)
            if rows is None:
                objects = []
                for number, line in enumerate(_lines(block), num_rows + 1):
                    try:
                        objects.append(row_of(parsed(line), schema, ids, takes_others=takes_others))
                    except NoRowError as error:
                        on_bad_line(_bad_line(number, line, error, fields))
                num_rows = number
                rows = pa.Table.from_pylist(objects, schema)
            else:
                num_rows += rows.num_rows
            yield from rows.cast(schema).to_batches()


def _schema(types: dict[str, pa.DataType], ids: Collection[Path], number: pa.DataType) -> pa.Schema:
    """Return the columns to read, with another type for raw ids that are numbers in the file's first rows."""
    return pa.schema([(name, _type(kind, (name,), ids, number)) for name, kind in types.items()])


def _type(kind: pa.DataType, path: Path, ids: Collection[Path], number: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _type(each.type, (*path, each.name), ids, number)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_type(kind.value_type, path, ids, number))
    if path not in ids:
        return kind
    return number if pa.types.is_integer(kind) or pa.types.is_floating(kind) else pa.string()


def _parsed(block: bytes, parsing: pajson.ParseOptions) -> pa.Table | None:
    """Read the rows of a block; None: it has values of other types, or not one object per line."""
    try:
        rows = pajson.read_json(pa.BufferReader(block), _reads(block), parsing)
    except pa.ArrowInvalid:
        return None
    is_sound = rows.num_rows == block.count(b"\n") or rows.num_rows == len(_lines(block))
    return rows if is_sound else None


def _bad_line(number: int, line: bytes, error: NoRowError, fields: dict[Path, str]) -> BadLine:
    text = line.decode(errors="backslashreplace")
    if not error.path:
        return BadLine(number, "JSON", str(error), text)
    field, column = fields.get(error.path, "table"), ".".join(error.path)
    return BadLine(number, f"{field}: type", f"column {column!r} ({field}): {error}", text)


FORMAT = TableFormat((".json", ".jsonl", ".ndjson"), "byte", _read_head, _read, ignores=OF_DELIMITED)
