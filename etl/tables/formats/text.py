"""Delimited text, as CSV and TSV: cut into ranges of bytes, unless quoted fields may hold newlines."""

import csv
import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

from etl.config import FilesConfig
from etl.tables.formats.base import FileRange, Head, SkipRow, TableFormat
from etl.tables.formats.lines import cut_lines, open_lines, read_sample, suffixes_of
from graphmill.errors import RawTableError

_TAB_SUFFIXES = (".tsv", ".tab", ".txt")


def _dialect(uri: str, table: FilesConfig) -> tuple[str, bool]:
    """Return the delimiter, and whether a double quote opens a quoted field.

    In tab-separated triples a double quote is mostly part of a name.
    """
    delimiter = table.delimiter or ("\t" if suffixes_of(uri)[0] in _TAB_SUFFIXES else ",")
    return delimiter, delimiter != "\t" if table.quoting is None else table.quoting


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    sample = read_sample(uri)
    text = io.StringIO(sample.decode("utf-8-sig", errors="replace"))
    delimiter, has_quotes = _dialect(uri, table)
    lines = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE)
    try:
        num_blank, first = next(((number, line) for number, line in enumerate(lines) if line), (0, []))
    except csv.Error as error:
        raise RawTableError(f"{uri}: its first row cannot be read as text: {error}") from error
    if table.header and not first:
        raise RawTableError(f"{uri}: expected a row of column names, found an empty file; set header: false")
    if not first or (table.header and not text.read().strip()):
        return Head(first, [])
    # The reader names columns by number, so that two columns of one name do no harm.
    numbered = [f"f{number}" for number in range(len(first))]
    head_bytes = _first_line_bytes(sample) if table.header else 0
    return Head(
        first if table.header else numbered,
        cut_lines(uri, sample, head_bytes, chunk_rows, cuttable=not has_quotes and head_bytes >= 0),
        reader_names=numbered,
        num_head_rows=num_blank + 1 if table.header else 0,
    )


def _first_line_bytes(sample: bytes) -> int:
    """Bytes up to the end of the first line that is not empty; -1: the sample does not hold its end."""
    stripped = sample.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    end = sample.find(b"\n", len(sample) - len(stripped))
    return end + 1 if end >= 0 else -1


def _read(file_range: FileRange, skip_row: SkipRow | None) -> Iterator[pa.RecordBatch]:
    delimiter, has_quotes = _dialect(file_range.uri, file_range.table)
    columns = file_range.names
    with open_lines(file_range) as stream:
        if stream is None:
            return
        yield from pacsv.open_csv(
            stream,
            pacsv.ReadOptions(
                use_threads=False,
                column_names=[f"f{number}" for number in range(file_range.num_columns)],
                skip_rows_after_names=file_range.num_head_rows,
            ),
            pacsv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if has_quotes else False,
                newlines_in_values=has_quotes,
                invalid_row_handler=skip_row,
            ),
            # Bytes, not strings: pyarrow would report bad UTF-8 without its row.
            pacsv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns, pa.binary()),
                null_values=[],
                strings_can_be_null=False,
            ),
        )


FORMAT = TableFormat((".csv", ".tsv", ".tab", ".txt"), "byte", _read_head, _read)
