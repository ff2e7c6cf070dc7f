"""Delimited text, as CSV and TSV: cut into ranges of bytes, unless quoted fields may hold newlines."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

from etl.config import FilesConfig
from etl.tables.formats.base import BadLine, FileRange, Head, OnBadLine, TableFormat, reading
from etl.tables.formats.lines import cut_lines, open_text, suffixes_of
from etl.tables.formats.rows import Fault, Rows, Syntax
from graphmill.errors import RawTableError

_TAB_SUFFIXES = (".tsv", ".tab", ".txt")


def default_delimiter(uri: str) -> str:
    """Return the delimiter that a file's suffix stands for."""
    return "\t" if suffixes_of(uri)[0] in _TAB_SUFFIXES else ","


def _syntax(uri: str, table: FilesConfig) -> Syntax:
    """Return the rules of a file; in tab-separated triples a double quote is mostly part of a name."""
    delimiter = table.delimiter or default_delimiter(uri)
    has_quotes = delimiter != "\t" if table.quoting is None else table.quoting
    return Syntax(delimiter, has_quotes, table.comment, table.max_field_lines)


def _parsing(syntax: Syntax) -> dict[str, object]:
    return {"delimiter": syntax.delimiter, "quote_char": '"' if syntax.has_quotes else False}


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    syntax = _syntax(uri, table)
    with open_text(uri, table) as stream, reading(uri):
        rows = Rows(stream.read, syntax, uri)
        first, end = rows.first(is_header=table.header)
        if not first:
            return Head([], [])
        head = rows.text[:end] if table.header else b""
        head_bytes = stream.raw_bytes(head) if head else 0
        names = _names(uri, first, syntax, table)
        if rows.are_over(len(head)):
            return Head(names, [])
    # The reader names columns by number, so that two columns of one name do no harm.
    numbered = [f"f{number}" for number in range(len(names))]
    is_cuttable = not syntax.has_quotes and head[-1:] in (b"", b"\n")
    return Head(
        names if table.header else numbered,
        cut_lines(uri, table, rows.text, head_bytes, chunk_rows, cuttable=is_cuttable),
        reader_names=numbered,
        head_bytes=len(head),
    )


def _names(uri: str, first: bytes, syntax: Syntax, table: FilesConfig) -> list[str]:
    try:
        names: list[str] = pacsv.read_csv(
            pa.BufferReader(first),
            pacsv.ReadOptions(use_threads=False, block_size=len(first)),
            pacsv.ParseOptions(**_parsing(syntax)),
        ).column_names
    except UnicodeDecodeError as error:
        if not table.header:
            return _names(uri, first.decode(errors="replace").encode(), syntax, table)
        raise RawTableError(
            f"{uri}: expected column names in {table.encoding}, found {error.object[:40]!r}; set the table's "
            "encoding, such as latin-1"
        ) from error
    return names


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    uri, columns = file_range.uri, file_range.names
    syntax = _syntax(uri, file_range.table)
    misfits: list[pacsv.InvalidRow] = []

    def note(row: pacsv.InvalidRow) -> str:
        misfits.append(row)
        return "skip"

    parsing = pacsv.ParseOptions(**_parsing(syntax), invalid_row_handler=note)
    # Bytes, not strings: pyarrow would report bad UTF-8 without its row.
    conversion = pacsv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.binary()),
        null_values=list(file_range.table.null_values),
        strings_can_be_null=bool(file_range.table.null_values),
        quoted_strings_can_be_null=False,
    )
    names = [f"f{number}" for number in range(file_range.num_columns)]
    num_rows = 0
    with open_text(uri, file_range.table, file_range.cut) as stream:
        for block in Rows(stream.read, syntax, uri).blocks(file_range.head_bytes):
            if isinstance(block, Fault):
                num_rows += 1
                on_bad_line(_quotes(num_rows, block))
                continue
            reads = pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(block))
            table = pacsv.read_csv(pa.BufferReader(block), reads, parsing, conversion)
            for row in misfits:
                on_bad_line(_number_of_fields(num_rows + row.number, row))
            num_rows += table.num_rows + len(misfits)
            misfits.clear()
            yield from table.to_batches()


def _quotes(number: int, fault: Fault) -> BadLine:
    text = fault.text.rstrip(b"\r\n").decode(errors="backslashreplace")
    return BadLine(number, "quotes", f"line {fault.line}: {fault.problem}", text)


def _number_of_fields(number: int, row: pacsv.InvalidRow) -> BadLine:
    detail = f"expected {row.expected_columns} columns, found {row.actual_columns}"
    is_one_more = row.actual_columns == row.expected_columns + 1
    of_r = "; R's write.table needs row.names = FALSE" if is_one_more else ""
    return BadLine(
        number,
        "number of fields",
        f"{detail}; in CSV, a field with commas needs quotes{of_r}",
        row.text,
        num_fields=row.actual_columns,
    )


FORMAT = TableFormat((".csv", ".tsv", ".tab", ".txt"), "byte", _read_head, _read)
