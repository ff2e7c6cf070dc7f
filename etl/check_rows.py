"""The check that every row of a block can become an edge, before anything is made of it.

lhs, rhs     -> string, never null or empty; integers become decimal strings, bytes must be UTF-8
relation     -> dictionary of strings, the same rules
weight       -> float32, finite, not negative
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.errors import RawTableError


@dataclass(frozen=True)
class Place:
    """Where a block stands, for messages."""

    uri: str
    columns: dict[str, str]
    first_row: int

    def error(self, part: str, row: int, problem: str) -> RawTableError:
        """An error about the `row`-th row of the block."""
        return RawTableError(
            f"{self.uri}: row {self.first_row + row + 1} (from 1, the header not counted), "
            f"column {self.columns[part]!r} ({part}): {problem}"
        )


def checked(block: pa.Table, at: Place) -> pa.Table:
    """The block with its columns as the head of this file says.

    Raises:
        RawTableError: a row cannot become an edge, or a column is of a type that cannot hold its part.
    """
    columns = {part: _strings(block[part], part, at) for part in ("lhs", "rhs")}
    if "relation" in block.column_names:
        columns["relation"] = _relations(block["relation"], at)
    if "weight" in block.column_names:
        columns["weight"] = _weights(block["weight"], at)
    return pa.table(columns)


def _strings(column: pa.ChunkedArray, part: str, at: Place) -> pa.ChunkedArray:
    """Raw ids or relation names as strings."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise at.error(
            part, row, f"null ({column.null_count} in this block); every edge needs both ids and a relation"
        )
    if pa.types.is_integer(column.type):
        return column.cast(pa.string())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = _decoded(column, part, at)
    elif not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise RawTableError(
            f"{at.uri}: column {at.columns[part]!r} ({part}): expected strings or integers, "
            f"found {column.type}"
        )
    lengths = pc.binary_length(column)
    if column.length() and pc.min(lengths).as_py() == 0:
        empty = pc.equal(lengths, 0)
        raise at.error(part, pc.index(empty, True).as_py(), f"empty ({pc.sum(empty)} in this block)")
    return column.cast(pa.string())


def _decoded(column: pa.ChunkedArray, part: str, at: Place) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:

        def fails(row: int) -> bool:
            try:
                column[row].as_py().decode()
            except UnicodeDecodeError:
                return True
            return False

        row = _first(fails, len(column))
        raise at.error(part, row, f"not UTF-8: {column[row].as_py()[:40]!r}") from error


def _relations(column: pa.ChunkedArray, at: Place) -> pa.ChunkedArray:
    """Relation names as dictionaries of strings, one dictionary for all."""
    if column.type == pa.dictionary(pa.int32(), pa.string()):
        column = column.unify_dictionaries()
        names = column.chunk(0).dictionary
        if not (column.null_count or names.null_count) and "" not in names.to_pylist():
            return column
    return _strings(column, "relation", at).dictionary_encode()


def _weights(column: pa.ChunkedArray, at: Place) -> pa.ChunkedArray:
    if column.null_count:
        raise at.error("weight", pc.index(column.is_null(), True).as_py(), "null; every edge needs a weight")
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        column = _parsed(column, at)
    try:
        weights = column.cast(pa.float32(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RawTableError(
            f"{at.uri}: column {at.columns['weight']!r} (weight): expected numbers, found {column.type}"
        ) from error
    values = weights.to_numpy()
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        row = int(wrong[0])
        raise at.error("weight", row, f"expected a finite number, 0 or more, found {column[row]}")
    return weights


def _parsed(column: pa.ChunkedArray, at: Place) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string()).cast(pa.float64())
    except pa.ArrowInvalid as error:

        def fails(row: int) -> bool:
            try:
                column.slice(row, 1).cast(pa.string()).cast(pa.float64())
            except pa.ArrowInvalid:
                return True
            return False

        row = _first(fails, len(column))
        raise at.error("weight", row, f"expected a number, found {column[row].as_py()!r}") from error


def _first(holds: Callable[[int], bool], num_rows: int) -> int:
    """The first row that `holds` is true of; the caller knows that there is one."""
    return next(row for row in range(num_rows) if holds(row))
