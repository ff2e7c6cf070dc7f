"""Checks that every row of a block can become an edge or an entity.

id, lhs, rhs -> string, never null or empty; integers and decimals without a fraction become decimal strings,
                UUIDs their usual text; bytes must be UTF-8
             -> list of such strings, at least one, where the type is featurized
relation     -> dictionary of strings, the same rules; static relations must be in the configuration
weight       -> float32, from 0 to 10^15
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.errors import RawTableError
from graphmill.formats.raw_ids import holds_whole_numbers, may_be_ids, texts_of
from graphmill.vocab import MAX_WEIGHT

_FIRST_NOT_ASCII = 0x80
WITHOUT_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
ROW = "row"
"""Column of a block beside its fields: the number of each row, from 1, counted as `RangePosition` says."""
UNKNOWN_RELATION = "relation: unknown relation"
CORRECT = "correct the table"
QUARANTINE = f"{CORRECT}, or set etl.on_bad_row: quarantine to leave such rows out and write them to a table"
_OTHER_ENCODING = "; if a text table has another encoding, such as latin-1, set its key `encoding`"
NULL_WORDS = pa.array(
    [
        *(r"\N", "NULL", "Null", "null", "None", "nil", "NaN", "nan", "NaT", "NA", "<NA>", "N/A", "n/a"),
        *("#N/A", "(null)", "<null>", "undefined", "-", "?", "__HIVE_DEFAULT_PARTITION__"),
        "00000000-0000-0000-0000-000000000000",
    ]
)
"""Texts that other systems write for null, and that may be ids all the same."""
Convert = Callable[[pa.ChunkedArray], pa.ChunkedArray]
_OF_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


@dataclass(frozen=True)
class Rules:
    """Requirements of the configuration for a table's rows."""

    relations: tuple[str, ...] | None = None
    """Relations that a row may name; None: any."""
    features: frozenset[str] = frozenset()
    """Fields that hold lists of features."""
    feature_delimiter: str = " "
    quarantines: bool = False
    remedy: str = QUARANTINE
    """Advice about a bad row that is refused."""


@dataclass(frozen=True)
class RangePosition:
    """Position of a range in its file, for messages."""

    uri: str
    columns: dict[str, str]
    start: int = 0
    """Start of the row count: a byte of a text file, a stripe of an ORC file."""
    unit: str = ""

    def place(self, row: int) -> str:
        """Name a row of the file by its number."""
        start = f"counted from {self.unit} {self.start}" if self.start else "from 1, the header not counted"
        return f"row {row} ({start})"

    def error(self, field: str, problem: str, row: int | None = None) -> RawTableError:
        """Return an error about the column of a field, or about a row, by its number."""
        at = "" if row is None else f"{self.place(row)}, "
        return RawTableError(f"{self.uri}: {at}column {self.columns[field]!r} ({field}): {problem}")


@dataclass(frozen=True, eq=False)
class BadRows:
    """Rows of a block that cannot become edges, all for the same reason."""

    at: RangePosition
    reason: str
    rows: npt.NDArray[np.int64]
    """Their numbers."""
    block: pa.Table
    """The rows as they were read."""


class _BadRowsError(Exception):
    def __init__(self, field: str, rows: npt.NDArray[np.int64], reason: str, detail: str):
        super().__init__(detail)
        self.field, self.rows, self.reason, self.detail = field, rows, reason, detail


def checked(block: pa.Table, at: RangePosition, rules: Rules) -> tuple[pa.Table, list[BadRows]]:
    """Return the good rows of a block `with_true_types`, as the types listed above, and the bad rows."""
    bad: list[BadRows] = []
    while True:
        fields = [field for field in block.column_names if field != ROW]
        try:
            return pa.table({field: _checked(block[field], field, at, rules) for field in fields}), bad
        except _BadRowsError as error:
            row_B = block[ROW].to_numpy()[error.rows]
            if not rules.quarantines:
                detail = f"{error.detail}; {rules.remedy}"
                raise at.error(error.field, detail, int(row_B[0])) from None
            bad.append(BadRows(at, f"{error.field}: {error.reason}", row_B, block.take(error.rows)))
            good_N = np.ones(block.num_rows, bool)
            good_N[error.rows] = False
            block = block.filter(pa.array(good_N))


def with_true_types(block: pa.Table) -> pa.Table:
    """Replace view types, and return strings that are not UTF-8 as bytes: readers do not check UTF-8."""
    return pa.table({field: _with_true_type(block[field]) for field in block.column_names})


def _with_true_type(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = column.cast(_replaced(column.type, WITHOUT_VIEWS))
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    of_bytes = _replaced(kind, _OF_BYTES)
    if of_bytes != kind:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return column.cast(kind).cast(of_bytes)
    return column


def _replaced(kind: pa.DataType, by: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    if _is_list(kind):
        return pa.list_(_replaced(kind.value_type, by))
    return by.get(kind, kind)


def _is_list(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def ids_or_null(column: pa.ChunkedArray, field: str, at: RangePosition) -> pa.Array:
    """Convert raw ids to strings; what is null or empty becomes null."""
    column = _texts(column, field, at)
    try:
        strings = column.cast(pa.string()).combine_chunks()
    except pa.ArrowInvalid as error:
        raise at.error(field, f"not UTF-8: {error}") from None
    return pc.if_else(pc.equal(strings, ""), None, strings)


def _checked(column: pa.ChunkedArray, field: str, at: RangePosition, rules: Rules) -> pa.ChunkedArray:
    if field == "weight":
        return _weights(column, at)
    if field == "relation":
        return _relations(column, at, rules)
    if field in rules.features:
        return _features(column, field, at, rules.feature_delimiter)
    return _strings(column, field, at)


def _refuse(field: str, wrong_N: Any, reason: str, detail: str) -> None:
    rows = np.flatnonzero(wrong_N)
    if rows.size:
        raise _BadRowsError(field, rows, reason, f"{detail} ({rows.size} in this block)")


def _strings(
    column: pa.ChunkedArray, field: str, at: RangePosition, *, takes_empty: bool = False
) -> pa.ChunkedArray:
    is_text = not holds_whole_numbers(column.type)
    column = _texts(column, field, at)
    if column.null_count:
        _refuse(field, column.is_null(), "null", "null; every edge needs both ids and a relation")
    if not is_text:
        return column
    if column.type in _OF_BYTES.values():
        column = _decoded(column, field)
    lengths = pc.binary_length(column)
    if column.length() and not takes_empty and pc.min(lengths).as_py() == 0:
        _refuse(field, pc.equal(lengths, 0), "empty", "empty")
    return column.cast(pa.string())


def _texts(column: pa.ChunkedArray, field: str, at: RangePosition) -> pa.ChunkedArray:
    """Return raw ids or relation names as strings, or as bytes, which may not be UTF-8."""
    if not may_be_ids(column.type):
        raise at.error(field, _wrong_type(column, at.columns[field]))
    return texts_of(column)


def _wrong_type(column: pa.ChunkedArray, name: str) -> str:
    """Say how to write a column that holds neither strings nor integers."""
    first = next((value.as_py() for value in column if value.is_valid), None)
    problem = f"expected strings or integers, found {column.type}, first {first!r}"
    if pa.types.is_struct(column.type):
        fields = " or ".join(f"{name}.{field.name}" for field in column.type)
        return f"{problem}; name the field to read: {fields}"
    if pa.types.is_decimal(column.type):
        digits = max(1, column.type.precision - column.type.scale)
        return (
            f"{problem}, with places for fractions; write whole numbers as such: in SQL CAST({name} AS "
            f"DECIMAL({digits}, 0)); or write ids with fractions as strings: CAST({name} AS STRING)"
        )
    if isinstance(first, float) and first == first // 1:
        return (
            f"{problem}: whole numbers became fractions, in pandas because of an empty cell; write them as "
            f'integers: in pandas df["{name}"].astype("Int64"), in SQL CAST({name} AS BIGINT)'
        )
    return (
        f'{problem}; write them as strings: in pandas df["{name}"].astype("string"), in SQL '
        f"CAST({name} AS STRING)"
    )


def _decoded(column: pa.ChunkedArray, field: str) -> pa.ChunkedArray:
    if column.type == pa.binary() and all(map(_is_ascii, column.chunks)):
        return pa.chunked_array([chunk.view(pa.string()) for chunk in column.chunks], pa.string())
    return _converted(
        column, field, lambda some: some.cast(pa.string()), "not UTF-8", "not UTF-8:", _OTHER_ENCODING
    )


def _is_ascii(strings: pa.Array) -> bool:
    """Tell whether all bytes are ASCII; testing all at once is many times as fast as string by string."""
    _, offsets, text = strings.buffers()
    if not len(strings) or text is None:
        return True
    ends = np.frombuffer(offsets, np.int32)[strings.offset :][: len(strings) + 1]
    used = np.frombuffer(text, np.uint8)[ends[0] : ends[-1]]
    return not used.size or int(used.max()) < _FIRST_NOT_ASCII


def _features(column: pa.ChunkedArray, field: str, at: RangePosition, delimiter: str) -> pa.ChunkedArray:
    """Convert to lists of feature names; empty text is an empty list."""
    if column.null_count:
        _refuse(field, column.is_null(), "null", "null; a row without features has an empty list")
    if not _is_list(column.type):
        texts = _strings(column, field, at, takes_empty=True)
        parts = pc.split_pattern(texts, delimiter)
        column = pc.if_else(pc.equal(texts, ""), pa.scalar([], parts.type), parts)
    lists = column.combine_chunks().cast(pa.list_(column.type.value_type))
    lengths = pc.list_value_length(lists).to_numpy()
    values = lists.flatten()
    try:
        names = _strings(pa.chunked_array([values]), field, at)
    except _BadRowsError as error:  # its rows number features, not edges
        rows = np.unique(np.searchsorted(np.cumsum(lengths), error.rows, side="right"))
        raise _BadRowsError(field, rows, f"{error.reason} feature", f"a feature is {error.detail}") from error
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, pa.concat_arrays(names.chunks))])


def _relations(column: pa.ChunkedArray, at: RangePosition, rules: Rules) -> pa.ChunkedArray:
    """Convert relation names to dictionary arrays with one common dictionary."""
    named = _named_relations(column, at)
    if rules.relations is None or not len(named):
        return named
    code_N = np.concatenate([chunk.indices.to_numpy() for chunk in named.chunks])
    names = named.chunk(0).dictionary.to_pylist()
    known = np.array([name in rules.relations for name in names])
    if not known.all() and not known[code_N].all():
        first = names[code_N[np.argmin(known[code_N])]]
        detail = (
            f"{first!r} is not a relation of the configuration, which has {', '.join(rules.relations)}; add "
            "it to relations, or set dynamic_relations to take every name that occurs"
        )
        _refuse("relation", ~known[code_N], "unknown relation", detail)
    return named


def _named_relations(column: pa.ChunkedArray, at: RangePosition) -> pa.ChunkedArray:
    if column.type == pa.dictionary(pa.int32(), pa.string()) and len(column):
        column = column.unify_dictionaries()
        names = column.chunk(0).dictionary
        if not (column.null_count or names.null_count) and "" not in names.to_pylist():
            return column
    return _strings(column, "relation", at).dictionary_encode()


def _weights(column: pa.ChunkedArray, at: RangePosition) -> pa.ChunkedArray:
    if column.null_count:
        _refuse("weight", column.is_null(), "null", "null; every edge needs a weight")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type in (*_OF_BYTES, *_OF_BYTES.values()):
        column = _converted(
            column,
            "weight",
            lambda texts: texts.cast(pa.string()).cast(pa.float64()),
            "not a number",
            "expected a number, found",
        )
    try:
        weights = column.cast(pa.float32(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise at.error("weight", f"expected numbers, found {column.type}") from error
    values = weights.to_numpy()
    wrong_N = ~((values >= 0) & (values <= MAX_WEIGHT))
    if wrong_N.any():
        first = column[int(np.argmax(wrong_N))]
        _refuse("weight", wrong_N, "out of range", f"expected a value from 0 to 10^15, found {first}")
    return weights


def _converted(
    column: pa.ChunkedArray, field: str, convert: Convert, reason: str, detail: str, way_out: str = ""
) -> Any:
    try:
        return convert(column)
    except pa.ArrowInvalid:
        rows = np.array(_failing(column, convert))
        value = column[int(rows[0])].as_py()[:40]
        with suppress(UnicodeDecodeError):
            value = value.decode() if isinstance(value, bytes) else value
        raise _BadRowsError(field, rows, reason, f"{detail} {value!r}{way_out}") from None


def _failing(column: pa.ChunkedArray, convert: Convert, first: int = 0) -> list[int]:
    try:
        convert(column)
        return []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return [first]
    half = len(column) // 2
    return [
        *_failing(column.slice(0, half), convert, first),
        *_failing(column.slice(half), convert, first + half),
    ]
