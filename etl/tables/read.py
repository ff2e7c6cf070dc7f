"""Reads file ranges as blocks of checked rows, without deleted rows and those that filters leave out.

A block has at most `BLOCK_ROWS` rows. Its columns are lhs and rhs, and relation and weight if the table has
them; or id, for a table of entities.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.tables import blocks
from etl.tables.check_rows import CORRECT, ROW, BadRows, RangePosition, Rules, checked, with_true_types
from etl.tables.filters import columns_of, filter_field, rows_that_pass
from etl.tables.formats import BadLine, FileRange, format_of
from etl.tables.formats.base import OnBadLine
from etl.tables.lake.deletes import DeletedRows
from graphmill.display.readable import shortened
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import cut, reading

_SHOWN = 80

Block = tuple[pa.Table, list[BadRows]]
"""The good rows of a block, and its bad rows."""


def read_blocks(file_range: FileRange, chunk_rows: int, rules: Rules) -> Iterator[Block]:
    """Read a file range block by block.

    Blocks are of one size; some of them make `chunk_rows` rows, or a few more.
    """
    at = _position(file_range)
    lines: list[BadLine] = []  # that are no rows, since the last block
    on_bad_line = lines.append if rules.quarantines else partial(_refuse, at, rules.remedy)
    block_rows = -(-chunk_rows // -(-chunk_rows // blocks.BLOCK_ROWS))
    with reading(file_range.uri):
        for block in _read(file_range, block_rows, on_bad_line):
            good, bad = checked(block, at, rules)
            bad += _bad_rows(at, lines)
            lines.clear()
            yield good, bad
    if lines:
        yield pa.table({}), _bad_rows(at, lines)


def _bad_rows(at: RangePosition, lines: Sequence[BadLine]) -> list[BadRows]:
    """Return lines as rows of one column, by the reason why they are no rows."""
    by_reason: dict[str, list[BadLine]] = {}
    for line in lines:
        by_reason.setdefault(line.reason, []).append(line)
    return [
        BadRows(
            at, reason, np.array([line.row for line in of]), pa.table({"text": [line.text for line in of]})
        )
        for reason, of in by_reason.items()
    ]


def read_whole(file_range: FileRange, on_bad_line: OnBadLine | None = None) -> Iterator[pa.Table]:
    """Read a file range block by block, without a check of its rows.

    `on_bad_line` takes lines that are no rows; None: they are errors.
    """
    on_bad_line = on_bad_line or partial(_refuse, _position(file_range), CORRECT)
    with reading(file_range.uri):
        for block in _read(file_range, blocks.BLOCK_ROWS, on_bad_line):
            yield block.drop_columns(ROW)


def _position(file_range: FileRange) -> RangePosition:
    unit = format_of(file_range.uri, file_range.table, file_range.snapshot).unit
    start = file_range.cut[0] if file_range.cut is not None and unit else 0
    columns = {field: str(column) for field, column in file_range.table.columns().items()}
    return RangePosition(file_range.uri, columns, start, unit)


def _read(file_range: FileRange, block_rows: int, on_bad_line: OnBadLine) -> Iterator[pa.Table]:
    """Yield blocks of the rows that stay, with their numbers."""
    file_format = format_of(file_range.uri, file_range.table, file_range.snapshot)
    deleted = DeletedRows(file_range.deletes)
    skipped: list[int] = []  # rows that are none, among those of the next batch
    num_waiting = 0  # lines since the last block: their texts wait for it in memory

    def skip(line: BadLine) -> None:
        nonlocal num_waiting
        num_waiting += 1
        skipped.append(line.row)
        on_bad_line(line)

    def numbered() -> Iterator[pa.Table]:
        last = file_range.first_row
        for batch in file_format.read(file_range, skip):
            first, last = last + 1, last + batch.num_rows + len(skipped)
            row_N = np.delete(np.arange(first, last + 1), np.array(skipped, np.int64) - first)
            skipped.clear()
            yield fields_of(file_range, pa.table(batch)).append_column(ROW, pa.array(row_N))

    def is_over() -> bool:
        return num_waiting >= blocks.BLOCK_ROWS

    for block in cut(numbered(), block_rows, blocks.BLOCK_BYTES, is_over):
        num_waiting = 0
        yield _kept(file_range, with_true_types(block), deleted)


def _refuse(at: RangePosition, remedy: str, line: BadLine) -> NoReturn:
    raise RawTableError(
        f"{at.uri}: {at.place(line.row)}: {line.detail}: {shortened(line.text, _SHOWN)!r}; {remedy}"
    )


def _kept(file_range: FileRange, block: pa.Table, deleted: DeletedRows) -> pa.Table:
    fields = {column: filter_field(column) for column in columns_of(file_range.filters)}
    first_row = block[ROW][0].as_py() - 1 if block.num_rows else 0
    mask_N = deleted.mask(first_row, block.num_rows)
    if file_range.filters:
        columns = {column: block[field] for column, field in fields.items()}
        passes = rows_that_pass(file_range.filters, columns)
        mask_N &= passes.to_numpy().astype(bool)
        block = block.drop_columns(list(fields.values()))
    return block if mask_N.all() else block.filter(pa.array(mask_N))


def fields_of(file_range: FileRange, rows: pa.Table) -> pa.Table:
    """Return columns as a reader gave them by field, with those that the file's path or a log gives."""
    columns = {
        field: pc.struct_field(rows[name], below) if below else rows[name]
        for field, (name, *below) in file_range.paths.items()
    }
    for field, kind in file_range.renamed.items():
        chunks = [chunk.view(kind) for chunk in columns[field].chunks]
        columns[field] = pa.chunked_array(chunks, type=kind)
    table = pa.table(columns)
    for field, value in file_range.values.items():
        table = table.append_column(field, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return table
