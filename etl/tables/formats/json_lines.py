"""JSON, one object per line: cut into ranges of bytes.

Only the columns that are asked for are read; of the others no type matters. pyarrow reads what has the types
of the file's first rows. Blocks that it refuses, or would not read exactly, or that have not one row per
line, are read line by line.

A raw id is a text or a whole number of any size, which becomes its decimal text. True, false, fractions
(1.0), lists and objects are none. Null, and a name that an object lacks, are null.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from etl.tables.filters import columns_of
from etl.tables.formats.base import OF_DELIMITED, BadLine, FileRange, Head, OnBadLine, TableFormat, cut_lines
from etl.tables.nested import Path
from graphmill.config.sections.etl import FilesConfig, WholeTableConfig
from graphmill.display.readable import shortened
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.opened import open_text
from graphmill.formats.raw_tables.rows import Fault, RawRows, Syntax

_LONG_NUMBER = re.compile(rb"\d{19}")

_SHOWN = 40
_DIGITS = 19  # numbers with fewer fit 64 bits


class NoRowError(Exception):
    """A line that is no row; `path` leads to its column, and is empty where the line is no object."""

    def __init__(self, problem: str, path: Path = ()) -> None:
        super().__init__(problem)
        self.path = path


class _Whole(str):
    """A whole number as it is written."""


class _Fraction(str):
    """Another number as it is written: 1.0, 1e3, NaN."""


class _Repeating(dict[str, Any]):
    """An object with names that occur twice."""

    def __init__(self, pairs: Sequence[tuple[str, Any]], names: Collection[str]) -> None:
        super().__init__(pairs)
        self.names = names


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    names = [name for name, _ in pairs]
    return _Repeating(pairs, {name for name in names if names.count(name) > 1})


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_Whole, parse_float=_Fraction, parse_constant=_Fraction
)


def parsed(line: bytes) -> dict[str, Any]:
    """Parse a line; numbers keep their text."""
    try:
        value = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise NoRowError(f"expected one JSON object in a line: {error}") from error
    if not isinstance(value, dict):
        raise NoRowError("expected one JSON object in a line, found another value")
    return value


def types_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the type of each name in the rows; of values of several types text."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _type_of_json([row[name] for row in rows if row.get(name) is not None]) for name in names}


def _type_of_json(values: Sequence[Any]) -> pa.DataType:
    kinds = {type(value) if not isinstance(value, dict) else dict for value in values}
    if kinds == {dict}:
        return pa.struct(list(types_of(values).items()))
    if kinds == {list}:
        return pa.list_(_type_of_json([item for value in values for item in value if item is not None]))
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {_Whole}:
        return pa.int64() if all(len(value) < _DIGITS or _fits(value) for value in values) else pa.string()
    return pa.float64() if kinds and kinds <= {_Whole, _Fraction} else pa.string()


def _fits(number: str) -> bool:
    return len(number) <= _DIGITS + 1 and -(1 << 63) <= int(number) < 1 << 63


def row_of(
    value: Any, fields: Iterable[pa.Field], ids: Collection[Path], *, takes_others: bool, path: Path = ()
) -> dict[str, Any]:
    """Return the values of an object for columns with these types; `ids` are those with raw ids."""
    if not isinstance(value, dict):
        raise _unlike("an object", value, path)
    row = {}
    if not takes_others and (others := set(value) - {field.name for field in fields}):
        raise NoRowError(f"the file's first rows have no {min(others)!r}", path)
    for field in fields:
        here = (*path, field.name)
        if isinstance(value, _Repeating) and field.name in value.names:
            raise NoRowError("the object has the name twice", here)
        row[field.name] = _value(value.get(field.name), field.type, here, ids, takes_others)
    return row


def _value(value: Any, kind: pa.DataType, path: Path, ids: Collection[Path], takes_others: bool) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return row_of(value, list(kind), ids, takes_others=takes_others, path=path)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise _unlike("a list", value, path)
        return [_value(item, kind.value_type, path, ids, takes_others) for item in value]
    if path not in ids:
        return _scalar(value, kind, path)
    if not isinstance(value, str) or isinstance(value, _Fraction):
        raise _unlike("a text or a whole number", value, path)
    return "0" if isinstance(value, _Whole) and value == "-0" else _text(value, path)


def _scalar(value: Any, kind: pa.DataType, path: Path) -> Any:
    if pa.types.is_string(kind) and not isinstance(value, dict | list):
        return str(value).lower() if isinstance(value, bool) else _text(value, path)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    try:
        if pa.types.is_integer(kind) and isinstance(value, _Whole):
            return pa.scalar(int(value), kind).as_py()
        if pa.types.is_floating(kind) and isinstance(value, str):
            return float(value)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        pass
    raise _unlike(f"{kind}, as in the file's first rows", value, path)


def _text(value: str, path: Path) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NoRowError(f"half a character: {error}", path) from error
    return str(value)


def _unlike(expected: str, value: Any, path: Path) -> NoRowError:
    shown = value if isinstance(value, _Whole | _Fraction) else json.dumps(value)
    return NoRowError(f"expected {expected}, found {shortened(shown, _SHOWN)}", path)


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with open_text(uri, table.encoding) as stream, reading(uri):
        rows = RawRows(stream.read, Syntax(comment=table.comment), uri)
        if not rows.first(is_header=True)[0]:
            return Head([], [])
        cuts = cut_lines(stream, table, rows, b"", chunk_rows)
        blocks = (block for block in rows.blocks() if not isinstance(block, Fault) and block.strip())
        types = _types(uri, table, next(blocks))
    return Head([*types], cuts, types)


def _types(uri: str, table: FilesConfig, block: bytes) -> dict[str, pa.DataType]:
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
    wanted = map(str, (*table.columns().values(), *columns_of(table.filters)))
    types = types_of(objects or [dict.fromkeys(wanted)])  # without any: each line is refused when it is read
    if not types:
        raise RawTableError(f"{uri}: row 1: {problem}") from problem
    return types


def _type_to_read(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a column as: never a time, which pyarrow guesses and JSON does not have."""
    if pa.types.is_list(kind):
        return pa.list_(_type_to_read(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _type_to_read(field.type)) for field in kind])
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if is_plain else pa.string()


def _reads(block: bytes) -> pajson.ReadOptions:
    return pajson.ReadOptions(use_threads=False, block_size=len(block))


def _lines(block: bytes) -> list[bytes]:
    return [line for line in block.splitlines() if line.strip()]


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.Table]:
    uri, table = file_range.uri, file_range.table
    takes_others = not isinstance(table, WholeTableConfig)
    fields = {path: name for name, path in file_range.paths.items()}
    ids = {
        path for path, name in fields.items() if takes_others and name != "weight" and name in table.columns()
    }
    # Raw ids that are numbers in the file's first rows are read as such if all are, and become strings.
    schema, exact = (
        pa.schema([(name, _type(kind, (name,), ids, number)) for name, kind in file_range.types.items()])
        for number in (pa.string(), pa.int64())
    )
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
            yield rows.cast(schema)


def _type(kind: pa.DataType, path: Path, ids: Collection[Path], number: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(
            [(field.name, _type(field.type, (*path, field.name), ids, number)) for field in kind]
        )
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
