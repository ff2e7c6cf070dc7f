"""Reads file ranges as blocks of checked rows, without deleted rows and those that filters leave out.

A block has at most `BLOCK_ROWS` rows. Its columns are lhs and rhs, and relation and weight if the table has
them; or id, for a table of entities.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.tables import blocks
from etl.tables.check_rows import CORRECT, BadRows, BlockPosition, Rules, checked, with_true_types
from etl.tables.filters import columns_of, filter_field, rows_that_pass
from etl.tables.formats import BadLine, FileRange, format_of
from etl.tables.formats.base import OnBadLine
from etl.tables.lake.deletes import DeletedRows
from graphmill.display.readable import shortened
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import cut, reading
from graphmill.storage.as_json import Int64

_SHOWN = 80

Block = tuple[pa.Table, list[BadRows]]
"""The good rows of a block, and its bad rows."""


class _Skipped:
    """Lines of a text file that are no rows, which the reader skips."""

    def __init__(self) -> None:
        self._new: list[BadLine] = []
        self._rows: list[int] = []  # of lines that are not before every row to come
        self._num_before = 0  # lines before those

    def skip(self, line: BadLine) -> None:
        self._new.append(line)
        self._rows.append(line.row)

    def _num_up_to(self, row: Int64 | int) -> Any:
        """Count the skipped lines before rows, which the reader has counted from 0 without such lines."""
        numbers = np.arange(self._num_before, self._num_before + len(self._rows))
        good_before = np.array(self._rows, np.int64) - numbers - 1
        return self._num_before + np.searchsorted(good_before, row, side="right")

    def renumbered(self, bad: BadRows) -> BadRows:
        """Number bad rows as if the reader had counted the skipped lines too."""
        return replace(bad, rows=bad.rows + self._num_up_to(bad.rows - 1))

    def take_new(self, at: BlockPosition) -> list[BadRows]:
        """Return the lines skipped since the last call; rows to come are not before the block `at`."""
        num_before = int(self._num_up_to(at.first_row))
        del self._rows[: num_before - self._num_before]
        self._num_before = num_before
        new, self._new = self._new, []
        return [
            BadRows(
                at,
                reason,
                np.array([line.row for line in lines], np.int64),
                pa.table({"text": [line.text for line in lines]}),
            )
            for reason in dict.fromkeys(line.reason for line in new)
            if (lines := [line for line in new if line.reason == reason])
        ]


def read_blocks(file_range: FileRange, chunk_rows: int, rules: Rules) -> Iterator[Block]:
    """Read a file range block by block.

    Blocks are of one size; some of them make `chunk_rows` rows, or a few more.
    """
    at, skipped = _position(file_range), _Skipped()
    on_bad_line = skipped.skip if rules.quarantines else partial(_refuse, at, rules.remedy)
    block_rows = -(-chunk_rows // -(-chunk_rows // blocks.BLOCK_ROWS))
    with reading(file_range.uri):
        for first_row, block, row_N in _read(file_range, block_rows, on_bad_line):
            at = replace(at, first_row=first_row)
            good, bad = checked(block, at, rules, row_N)
            yield good, [*map(skipped.renumbered, bad), *skipped.take_new(at)]
    if new_lines := skipped.take_new(at):
        yield pa.table({}), new_lines


def read_whole(file_range: FileRange, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, pa.Table]]:
    """Read a file range block by block, without a check of its rows; yield the first row's number too.

    `on_bad_line` takes lines that are no rows; None: they are errors.
    """
    on_bad_line = on_bad_line or partial(_refuse, _position(file_range), CORRECT)
    with reading(file_range.uri):
        for first_row, block, _ in _read(file_range, blocks.BLOCK_ROWS, on_bad_line):
            yield first_row, block


def _position(file_range: FileRange) -> BlockPosition:
    unit = format_of(file_range.uri, file_range.table, file_range.snapshot).unit
    start = file_range.cut[0] if file_range.cut is not None and unit else 0
    columns = {field: str(column) for field, column in file_range.table.columns().items()}
    return BlockPosition(file_range.uri, columns, file_range.first_row, start, unit)


def _read(
    file_range: FileRange, block_rows: int, on_bad_line: OnBadLine
) -> Iterator[tuple[int, pa.Table, Int64 | None]]:
    """Yield the first row's number of each block, the rows that stay, and their numbers in the block."""
    file_format = format_of(file_range.uri, file_range.table, file_range.snapshot)
    first_row, deleted = file_range.first_row, DeletedRows(file_range.deletes)
    num_skipped = 0  # since the last block: their texts wait for it in memory

    def skip(line: BadLine) -> None:
        nonlocal num_skipped
        num_skipped += 1
        on_bad_line(line)

    def is_over() -> bool:
        return num_skipped >= blocks.BLOCK_ROWS

    rows = (fields_of(file_range, pa.table(batch)) for batch in file_format.read(file_range, skip))
    for block in cut(rows, block_rows, blocks.BLOCK_BYTES, is_over):
        num_skipped = 0
        yield first_row, *_kept(file_range, with_true_types(block), first_row, deleted)
        first_row += block.num_rows


def _refuse(at: BlockPosition, remedy: str, line: BadLine) -> NoReturn:
    raise RawTableError(
        f"{at.uri}: {at.place(line.row)}: {line.detail}: {shortened(line.text, _SHOWN)!r}; {remedy}"
    )


def _kept(
    file_range: FileRange, block: pa.Table, first_row: int, deleted: DeletedRows
) -> tuple[pa.Table, Int64 | None]:
    fields = {column: filter_field(column) for column in columns_of(file_range.filters)}
    mask_N = deleted.mask(first_row, block.num_rows)
    if file_range.filters:
        columns = {column: block[field] for column, field in fields.items()}
        passes = rows_that_pass(file_range.filters, columns)
        mask_N &= passes.to_numpy().astype(bool)
        block = block.drop_columns(list(fields.values()))
    if mask_N.all():
        return block, None
    return block.filter(pa.array(mask_N)), np.flatnonzero(mask_N)


def fields_of(file_range: FileRange, rows: pa.Table) -> pa.Table:
    """Return columns as a reader gave them by field, with those that the file's path or a log gives."""
    columns = {
        field: pc.struct_field(rows[file_range.nested[field][0]], list(file_range.nested[field][1:]))
        if field in file_range.nested
        else rows[name]
        for field, name in file_range.columns.items()
    }
    for field, kind in file_range.renamed.items():
        chunks = [chunk.view(kind) for chunk in columns[field].chunks]
        columns[field] = pa.chunked_array(chunks, type=kind)
    table = pa.table(columns)
    for field, value in file_range.values.items():
        table = table.append_column(field, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return table
