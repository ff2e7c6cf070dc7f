"""Reads file ranges as blocks of checked rows.

A block has at most `BLOCK_ROWS` rows. Its columns are lhs and rhs, and relation and weight if the table has
them; or id, for a table of entities.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from etl.tables import blocks
from etl.tables.check_rows import BadRows, BlockPosition, Rules, checked
from etl.tables.formats import FileRange, format_of, reading


class _Skipped:
    """Lines of a text file with too few or too many fields, which the reader skips."""

    def __init__(self, num_head_rows: int) -> None:
        self._num_head_rows = num_head_rows
        self._lines: list[tuple[int, str]] = []
        self._num_taken = 0

    def skip(self, row: pacsv.InvalidRow) -> str:
        """Skip a line: pyarrow's `invalid_row_handler`."""
        # pyarrow counts from 1, the header included.
        self._lines.append((row.number - self._num_head_rows, row.text))
        return "skip"

    def renumbered(self, bad: BadRows) -> BadRows:
        """Number bad rows as if the reader had counted the skipped lines too."""
        skipped = np.array([row for row, _ in self._lines], np.int64)
        num_good_before = skipped - np.arange(len(skipped)) - 1
        rows = bad.rows + np.searchsorted(num_good_before, bad.rows - 1, side="right")
        return replace(bad, rows=rows)

    def take_new(self) -> list[BadRows]:
        """Return the lines skipped since the last call."""
        new_lines = self._lines[self._num_taken :]
        self._num_taken = len(self._lines)
        if not new_lines:
            return []
        rows = np.array([row for row, _ in new_lines], np.int64)
        return [BadRows("number of fields", rows, pa.table({"text": [text for _, text in new_lines]}))]


def read_blocks(
    file_range: FileRange, chunk_rows: int, rules: Rules
) -> Iterator[tuple[BlockPosition, pa.Table, list[BadRows]]]:
    """Read a file range block by block: the block's position, its good rows, its bad rows.

    Blocks are of one size; some of them make `chunk_rows` rows, or a few more.

    Raises:
        RawTableError: a row cannot become an edge, and bad rows do not go to quarantine; the message names
            file, row and column.
    """
    file_format = format_of(file_range.uri, file_range.table)
    unit = file_format.unit
    head = 0 if file_range.cut is None or not unit else file_range.cut[0]
    columns = {field: str(column) for field, column in file_range.table.columns().items()}
    skipped = _Skipped(file_range.num_head_rows)
    num_good = file_range.first_row
    with reading(file_range.uri):
        batches = file_format.read(file_range, skipped.skip if rules.quarantines else None)
        rows = (_fields(file_range, pa.table(batch)) for batch in batches)
        block_rows = -(-chunk_rows // -(-chunk_rows // blocks.BLOCK_ROWS))
        for block in blocks.cut(rows, block_rows, blocks.BLOCK_BYTES):
            position = BlockPosition(file_range.uri, columns, num_good, head, unit)
            good, bad = checked(block, position, rules)
            yield position, good, [*map(skipped.renumbered, bad), *skipped.take_new()]
            num_good += block.num_rows
    if new_lines := skipped.take_new():
        yield BlockPosition(file_range.uri, columns, num_good, head, unit), pa.table({}), new_lines


def _fields(file_range: FileRange, rows: pa.Table) -> pa.Table:
    """Return the columns by field, with those that the file's path gives."""
    table = rows.select(list(file_range.columns.values())).rename_columns(list(file_range.columns))
    for field, value in file_range.values.items():
        table = table.append_column(field, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return table
