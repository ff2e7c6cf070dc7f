"""Filters of a table's entry: conditions on its columns, for rows, files and row groups.

A value is converted to the column's type. A column of text, such as one of CSV or of a Hive folder, is
converted to the value's type instead: `"07" >= 7`. As in SQL, null passes no condition but `== null`.

Shapes: N rows, or N files.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphmill.config.sections.etl import Filters, Scalar
from graphmill.errors import RawTableError
from graphmill.formats.raw_ids import BYTES, TEXTS, texts_of

_COMPARE = {
    "==": pc.equal,
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NEGATED = ("!=", "not in")
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def columns_of(filters: Filters) -> list[str]:
    """Return the columns that filters name, each once."""
    return list(dict.fromkeys(column for every in filters for column, _, _ in every))


def filter_field(column: str) -> str:
    """Return the field, beside those of an edge, that a column of filters is read as."""
    return f"filter {column}"


def rows_that_pass(filters: Filters, columns: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """Tell of each row whether it passes, [N]; `columns` are all columns of the filters."""
    return _any_of(filters, lambda *condition: _judged(columns, *condition))


def left_for_rows(
    filters: Filters,
    columns: Mapping[str, pa.ChunkedArray],
    spans: Mapping[str, tuple[pa.ChunkedArray, pa.ChunkedArray]],
    num_files: int,
) -> list[Filters | None]:
    """Return the conditions that each file leaves to its rows; (): all rows pass, None: no row does.

    `columns` are those that all rows of a file share, [N]; `spans` are the smallest and largest values of
    others, [N] each, null where they are unknown.
    """
    if not filters:
        return [()] * num_files

    def judged(column: str, operator: str, value: Any) -> list[bool | None]:
        if column in columns:
            of_files: list[bool | None] = _judged(columns, column, operator, value).to_pylist()
            return of_files
        possible = _possible(column, *spans[column], operator, value) if column in spans else None
        return [False if each is False else None for each in possible.to_pylist()] if possible else unknown

    unknown: list[bool | None] = [None] * num_files
    verdicts = [[(condition, judged(*condition)) for condition in every] for every in filters]
    return [_left(verdicts, number) for number in range(num_files)]


def _left(verdicts: Sequence[Sequence[tuple[Any, Sequence[bool | None]]]], number: int) -> Filters | None:
    left = []
    for every in verdicts:
        if all(of_files[number] is not False for _, of_files in every):
            left.append(tuple(condition for condition, of_files in every if of_files[number] is None))
    if () in left:
        return ()
    return tuple(left) or None


def _judged(
    columns: Mapping[str, pa.ChunkedArray], column: str, operator: str, value: Any
) -> pa.ChunkedArray:
    plain = _decoded(columns[column])
    return pc.fill_null(_holds(column, plain, plain.type, operator, value), False)


def expression(filters: Filters, types: Mapping[str, pa.DataType]) -> pc.Expression:
    """Return a pyarrow expression that all passing rows fulfil; columns have these types."""

    def judge(column: str, operator: str, value: Any) -> Any:
        kind = types.get(column)
        if kind is None or _is_decoded(kind) or _is_parsed(kind, value):
            return pc.scalar(True)
        if pa.types.is_floating(kind) and operator in _NEGATED and value is not None:
            return pc.scalar(True)  # statistics leave NaN out, which passes
        return _holds(column, pc.field(column), kind, operator, value)

    return _any_of(filters, judge)


def described(filters: Filters) -> str:
    """Return the filters as text, for messages."""
    every = (" and ".join(f"{c} {o} {_text(v)}" for c, o, v in conditions) for conditions in filters)
    return " or ".join(every)


def _text(value: Any) -> str:
    return f"({', '.join(map(repr, value))})" if isinstance(value, tuple) else repr(value)


def _any_of(filters: Filters, judge: Any) -> Any:
    return reduce(
        pc.or_kleene, [reduce(pc.and_kleene, [judge(*one) for one in conditions]) for conditions in filters]
    )


@contextmanager
def _comparing(column: str, kind: pa.DataType, value: Any) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise RawTableError(
            f"filters: {column} is of type {kind}, which {_text(value)} cannot be compared with: {error}"
        ) from error


def _holds(column: str, values: Any, kind: pa.DataType, operator: str, value: Any) -> Any:
    with _comparing(column, kind, value):
        return _compared(column, values, kind, operator, value)


def _compared(column: str, values: Any, kind: pa.DataType, operator: str, value: Any) -> Any:
    if value is None:
        return (pc.is_valid if operator == "!=" else pc.is_null)(values)
    if not isinstance(value, tuple):
        parsed, kind = _parsed(column, values, kind, value)
        return _COMPARE[operator](parsed, _converted(value, kind))
    listed = [item for item in value if item is not None]
    parts = [pc.is_null(values)] if len(listed) < len(value) else []
    by_type = {type(item): [other for other in listed if type(other) is type(item)] for item in listed}
    for some in by_type.values():
        parsed, other = _parsed(column, values, kind, some[0])
        if pa.types.is_decimal(other):  # is_in takes no other numbers there
            parts += [pc.equal(parsed, _converted(item, other)) for item in some]
            continue
        wanted, set_type = [_converted(item, other).as_py() for item in some], other
        if pa.types.is_integer(other):
            set_type = pa.float64() if isinstance(some[0], float) else pa.int64()
        if pa.types.is_floating(set_type) and 0 in wanted:
            wanted += [0.0, -0.0]  # equal, but not to is_in
        parts.append(pc.is_in(parsed, value_set=pa.array(wanted, set_type)))
    is_listed = reduce(pc.or_kleene, parts)
    return is_listed if operator == "in" else pc.and_kleene(pc.is_valid(values), pc.invert(is_listed))


def _possible(column: str, low: Any, high: Any, operator: str, value: Any) -> Any:
    """Tell whether a value between `low` and `high` may fulfil a condition; None: unknown."""
    if isinstance(value, tuple) and operator == "in":
        parts = [_possible(column, low, high, "==", item) for item in value]
        return None if any(verdict is None for verdict in parts) else reduce(pc.or_kleene, parts)
    if operator in _NEGATED or value is None or _is_decoded(low.type) or _is_parsed(low.type, value):
        return None
    if pa.types.is_floating(low.type):  # some writers count NaN as the largest value
        low, high = (pc.if_else(pc.is_nan(bound), None, bound) for bound in (low, high))
    with _comparing(column, low.type, value):
        scalar = _converted(value, low.type)
        if operator in ("==", "="):
            return pc.and_kleene(pc.less_equal(low, scalar), pc.greater_equal(high, scalar))
        return _COMPARE[operator](low if operator.startswith("<") else high, scalar)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as strings, whatever type a reader gave it; text that is not UTF-8 as bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = texts_of(column) if _is_decoded(kind) else column.cast(kind)
    try:
        return plain.cast(pa.string()) if _is_text(plain.type) else plain
    except pa.ArrowInvalid:
        return plain


def _is_decoded(kind: pa.DataType) -> bool:
    """Tell whether a type is converted before it is compared; statistics are not of the converted type."""
    tests = (pa.types.is_dictionary, pa.types.is_fixed_size_binary, pa.types.is_null)
    return kind == pa.uuid() or any(test(kind) for test in tests)


def _parsed(column: str, values: Any, kind: pa.DataType, value: Scalar) -> tuple[Any, pa.DataType]:
    """Return a column of text as the type of a value that is no text; other columns as they are."""
    if not _is_parsed(kind, value):
        return values, kind
    with_nulls = pc.if_else(pc.equal(values, pa.scalar("", kind)), pa.scalar(None, kind), values)
    wanted = _TYPES[type(value)]
    try:
        return with_nulls.cast(wanted), wanted
    except pa.ArrowInvalid:
        wanted = pa.float64() if wanted == pa.int64() else wanted  # the text may have fractions
    try:
        return with_nulls.cast(wanted), wanted
    except pa.ArrowInvalid as error:
        raise RawTableError(
            f"filters: {column} is text that cannot be compared with {value!r}: {error}; quote the value to "
            "compare text"
        ) from error


def _is_parsed(kind: pa.DataType, value: Any) -> bool:
    """Tell whether a column of text is compared with another type than text."""
    values = value if isinstance(value, tuple) else (value,)
    return _is_text(kind) and any(item is not None and not isinstance(item, str) for item in values)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (*TEXTS, *BYTES)


def _converted(value: Scalar, kind: pa.DataType) -> pa.Scalar:
    scalar = pa.scalar(value)
    if pa.types.is_timestamp(kind) and kind.tz and isinstance(value, str):
        return scalar.cast(pa.timestamp(kind.unit)).cast(kind)  # a time without a zone is UTC
    return scalar.cast(kind) if isinstance(value, str) or pa.types.is_temporal(kind) else scalar
