"""Sources -> blocks of checked rows, so small that they stay in the processor's cache.

A block has at most `BLOCK_ROWS` rows, and the columns that `check_rows` tells of: lhs, rhs, and relation
and weight where the table has such columns; or id, of a table of entities.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.orc as paorc

from etl.tables.blocks import cut
from etl.tables.check_rows import BadRows, Place, Rules, checked
from etl.tables.files import delimiter_of, format_of, quoting_of
from etl.tables.sources import JSON_BLOCK_BYTES, Source, open_lines, open_parquet, reading
from graphmill import storage
from graphmill.formats import parquet_bounds

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 64 << 20  # a block ends here too, so that long ids do not make it large


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
    source: Source, chunk_rows: int, rules: Rules
) -> Iterator[tuple[Place, pa.Table, list[BadRows]]]:
    """The source's rows, block by block: where each stands, its good rows, its bad ones.

    As many blocks of one size as it takes make `chunk_rows` rows, or some more.

    Raises:
        RawTableError: a row cannot become an edge, and is not to be set aside; the message names file, row
            and column.
    """
    file_format = format_of(source.uri, source.table)
    readers = {"parquet": _read_parquet, "orc": _read_orc, "csv": _read_text, "json": _read_json}
    unit = {"csv": "byte", "json": "byte", "orc": "stripe"}.get(file_format, "")
    head = 0 if source.cut is None or not unit else source.cut[0]
    columns = {part: str(column) for part, column in source.table.columns().items()}
    skipped = _Skipped(source.num_head_rows)
    num_good = source.first_row
    with reading(source.uri):
        batches = readers[file_format](source, skipped if rules.sets_bad_rows_aside else None)
        rows = (_parts(source, pa.table(batch)) for batch in batches)
        block_rows = -(-chunk_rows // -(-chunk_rows // BLOCK_ROWS))
        for block in cut(rows, block_rows, BLOCK_BYTES):
            place = Place(source.uri, columns, num_good, head, unit)
            good, bad = checked(block, place, rules)
            yield place, good, [*map(skipped.renumbered, bad), *skipped.take_news()]
            num_good += block.num_rows
    if news := skipped.take_news():
        yield Place(source.uri, columns, num_good, head, unit), pa.table({}), news


def _parts(source: Source, rows: pa.Table) -> pa.Table:
    """The columns by part, those that the file's path gives too."""
    table = rows.select(list(source.columns.values())).rename_columns(list(source.columns))
    for part, value in source.values.items():
        table = table.append_column(part, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return table


def _read_parquet(source: Source, skipped: _Skipped | None) -> Iterator[pa.RecordBatch]:
    # Names of relations repeat: as a dictionary they are read twice as fast.
    with open_parquet(source.uri, source.columns.get("relation")) as parquet:
        groups = range(*(source.cut or (0, parquet.num_row_groups)))
        names = list(source.columns.values())
        relation = source.columns.get("relation")
        rows = parquet_bounds.batch_rows(
            parquet, source.uri, names, BLOCK_ROWS, groups=groups, dictionary_column=relation
        )
        yield from parquet.iter_batches(rows, groups, names, use_threads=False)


def _read_orc(source: Source, skipped: _Skipped | None) -> Iterator[pa.RecordBatch]:
    with storage.open_input(source.uri) as stream:
        orc = paorc.ORCFile(stream)
        for stripe in range(*(source.cut or (0, orc.nstripes))):
            yield orc.read_stripe(stripe, list(source.columns.values()))


def _read_json(source: Source, skipped: _Skipped | None) -> Iterator[pa.RecordBatch]:
    with open_lines(source) as stream:
        if stream is None:
            return
        yield from pajson.open_json(
            stream,
            pajson.ReadOptions(use_threads=False, block_size=JSON_BLOCK_BYTES),
            pajson.ParseOptions(
                explicit_schema=pa.schema(source.types),
                unexpected_field_behavior="ignore",
            ),
        )


def _read_text(source: Source, skipped: _Skipped | None) -> Iterator[pa.RecordBatch]:
    table, uri = source.table, source.uri
    quoting = quoting_of(uri, table)
    with open_lines(source) as stream:
        if stream is None:
            return
        yield from pacsv.open_csv(
            stream,
            # Columns are named by number: so doubled names do no harm.
            pacsv.ReadOptions(
                use_threads=False,
                column_names=[f"f{number}" for number in range(source.num_columns)],
                skip_rows_after_names=source.num_head_rows,
            ),
            pacsv.ParseOptions(
                delimiter=delimiter_of(uri, table),
                quote_char='"' if quoting else False,
                newlines_in_values=quoting,
                invalid_row_handler=skipped.skip if skipped else None,
            ),
            # Bytes, not strings: pyarrow would tell of bad UTF-8 without its row.
            pacsv.ConvertOptions(
                include_columns=list(source.columns.values()),
                column_types=dict.fromkeys(source.columns.values(), pa.binary()),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
