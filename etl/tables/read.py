"""Sources -> blocks of checked rows, so small that they stay in the processor's cache.

A block has at most `BLOCK_ROWS` rows, and the columns that `check_rows` tells of: lhs, rhs, and relation
and weight where the table has such columns; or id, of a table of entities.
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
    """Lines of a text file that have too few or too many fields, set aside by the reader."""

    def __init__(self, num_head_rows: int) -> None:
        self._num_head_rows = num_head_rows
        self._lines: list[tuple[int, str]] = []
        self._num_told = 0

    def skip(self, row: pacsv.InvalidRow) -> str:
        """pyarrow's `invalid_row_handler`."""
        # Numbered from 1, the header counted, as is this row itself.
        self._lines.append((row.number - self._num_head_rows, row.text))
        return "skip"

    def renumbered(self, bad: BadRows) -> BadRows:
        """The same rows, numbered as if the reader had counted the skipped lines too."""
        skipped = np.array([row for row, _ in self._lines], np.int64)
        num_good_before = skipped - np.arange(len(skipped)) - 1
        rows = bad.rows + np.searchsorted(num_good_before, bad.rows - 1, side="right")
        return replace(bad, rows=rows)

    def take_news(self) -> list[BadRows]:
        """What was skipped since the last call."""
        news = self._lines[self._num_told :]
        self._num_told = len(self._lines)
        if not news:
            return []
        rows = np.array([row for row, _ in news], np.int64)
        return [BadRows("number of fields", rows, pa.table({"text": [text for _, text in news]}))]


def read_blocks(
    file_range: FileRange, chunk_rows: int, rules: Rules
) -> Iterator[tuple[BlockPosition, pa.Table, list[BadRows]]]:
    """The file_range's rows, block by block: where each stands, its good rows, its bad ones.

    As many blocks of one size as it takes make `chunk_rows` rows, or some more.

    Raises:
        RawTableError: a row cannot become an edge, and is not to be set aside; the message names file, row
            and column.
    """
    file_format = format_of(file_range.uri, file_range.table)
    unit = file_format.unit
    head = 0 if file_range.cut is None or not unit else file_range.cut[0]
    columns = {field: str(column) for field, column in file_range.table.columns().items()}
    skipped = _Skipped(file_range.num_head_rows)
    num_good = file_range.first_row
    with reading(file_range.uri):
        batches = file_format.read(file_range, skipped.skip if rules.sets_bad_rows_aside else None)
        rows = (_fields(file_range, pa.table(batch)) for batch in batches)
        block_rows = -(-chunk_rows // -(-chunk_rows // blocks.BLOCK_ROWS))
        for block in blocks.cut(rows, block_rows, blocks.BLOCK_BYTES):
            place = BlockPosition(file_range.uri, columns, num_good, head, unit)
            good, bad = checked(block, place, rules)
            yield place, good, [*map(skipped.renumbered, bad), *skipped.take_news()]
            num_good += block.num_rows
    if news := skipped.take_news():
        yield BlockPosition(file_range.uri, columns, num_good, head, unit), pa.table({}), news


def _fields(file_range: FileRange, rows: pa.Table) -> pa.Table:
    """The columns by field, those that the file's path gives too."""
    table = rows.select(list(file_range.columns.values())).rename_columns(list(file_range.columns))
    for field, value in file_range.values.items():
        table = table.append_column(field, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return table
