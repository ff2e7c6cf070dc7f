"""JSON, line by line, where columns mix types: what pyarrow refuses, or reads as a number that is not exact.

A raw id is a text or a whole number of any size, which becomes its decimal text. True, false, fractions
(1.0), lists and objects are none. Null, and a name that an object lacks, are null.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from etl.tables.nested import Path
from graphmill.display.readable import shortened

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
    return {name: _type([row[name] for row in rows if row.get(name) is not None]) for name in names}


def _type(values: Sequence[Any]) -> pa.DataType:
    kinds = {type(value) if not isinstance(value, dict) else dict for value in values}
    if kinds == {dict}:
        return pa.struct(list(types_of(values).items()))
    if kinds == {list}:
        return pa.list_(_type([item for value in values for item in value if item is not None]))
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {_Whole}:
        return pa.int64() if all(len(each) < _DIGITS or _fits(each) for each in values) else pa.string()
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
    return _id(value, path) if path in ids else _scalar(value, kind, path)


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


def _id(value: Any, path: Path) -> str:
    if not isinstance(value, str) or isinstance(value, _Fraction):
        raise _unlike("a text or a whole number", value, path)
    return "0" if isinstance(value, _Whole) and value == "-0" else _text(value, path)


def _text(value: str, path: Path) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NoRowError(f"half a character: {error}", path) from error
    return str(value)


def _unlike(expected: str, value: Any, path: Path) -> NoRowError:
    shown = value if isinstance(value, _Whole | _Fraction) else json.dumps(value)
    return NoRowError(f"expected {expected}, found {shortened(shown, _SHOWN)}", path)
