"""The first rows of a table, as the stage itself reads them."""

import pyarrow as pa

from etl.tables.check_rows import RangePosition, ids_or_null
from etl.tables.formats import BadLine, FileRange
from etl.tables.formats.base import OnBadLine
from etl.tables.read import read_whole
from graphmill.errors import RawTableError

SAMPLE_ROWS = 100_000


def first_rows(
    file_range: FileRange, on_bad_line: OnBadLine | None = None, limit: int = SAMPLE_ROWS
) -> pa.Table:
    """Read the first rows of a range as strings, by field.

    `on_bad_line` takes lines that are no rows, which count as rows then; None: they are skipped.
    """
    blocks: list[pa.Table] = []
    num_rows = 0

    def note(line: BadLine) -> None:
        nonlocal num_rows
        if on_bad_line is not None:
            num_rows += 1
            on_bad_line(line)

    for block in read_whole(file_range, note):
        blocks.append(pa.table({name: as_strings(block[name]) for name in block.column_names}))
        num_rows += block.num_rows
        if num_rows >= limit:
            break
    if not blocks:
        return pa.table({field: pa.array([], pa.string()) for field in file_range.table.columns()})
    return pa.concat_tables(blocks).slice(0, limit)


def as_strings(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as the ids that the stage makes of them, null if empty; of what is no id, as text.

    Lists and structs are all null.
    """
    try:
        return pa.chunked_array([ids_or_null(values, "", RangePosition("", {"": ""}))])
    except RawTableError:  # no ids
        kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    try:
        return values.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.chunked_array([pa.nulls(len(values), pa.string())])
