"""Delimited text, as CSV and TSV: cut into ranges of bytes, unless quoted fields may hold newlines."""

from collections.abc import Iterator

import pyarrow as pa

from etl.tables.formats.base import BadLine, FileRange, Head, OnBadLine, TableFormat, cut_lines
from graphmill.config.sections.etl import FilesConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.columns import misfit, names_in, numbered, parsed
from graphmill.formats.raw_tables.opened import open_text, suffixes_of
from graphmill.formats.raw_tables.rows import Fault, RawRows, Syntax

_TAB_SUFFIXES = (".tsv", ".tab", ".txt")


def default_delimiter(uri: str) -> str:
    """Return the delimiter that a file's suffix stands for."""
    return "\t" if suffixes_of(uri)[0] in _TAB_SUFFIXES else ","


def _syntax(uri: str, table: FilesConfig) -> Syntax:
    """Return the rules of a file; in tab-separated triples a double quote is mostly part of a name."""
    delimiter = table.delimiter or default_delimiter(uri)
    has_quotes = delimiter != "\t" if table.quoting is None else table.quoting
    return Syntax(delimiter, has_quotes, table.comment, table.max_field_lines)


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    syntax = _syntax(uri, table)
    with open_text(uri, table.encoding) as stream, reading(uri):
        rows = RawRows(stream.read, syntax, uri)
        first, end = rows.first(is_header=table.header)
        if not first:
            return Head([], [])
        head = rows.text[:end] if table.header else b""
        names = _names(uri, first, syntax, table)
        if rows.are_over(len(head)):
            return Head(names, [])
        cuts = cut_lines(stream, table, rows, head, chunk_rows)
    by_number = numbered(len(names))
    return Head(names if table.header else by_number, cuts, reader_names=by_number, head_bytes=len(head))


def _names(uri: str, first: bytes, syntax: Syntax, table: FilesConfig) -> list[str]:
    try:
        return names_in(first, syntax)
    except UnicodeDecodeError as error:
        if not table.header:
            return _names(uri, first.decode(errors="replace").encode(), syntax, table)
        raise RawTableError(
            f"{uri}: expected column names in {table.encoding}, found {error.object[:40]!r}; set the table's "
            "encoding, such as latin-1"
        ) from error


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.Table]:
    uri, syntax = file_range.uri, _syntax(file_range.uri, file_range.table)
    columns = (file_range.num_columns, file_range.names, file_range.table.null_values)
    num_rows = 0
    with open_text(uri, file_range.table.encoding, file_range.cut) as stream:
        for block in RawRows(stream.read, syntax, uri).blocks(file_range.head_bytes):
            if isinstance(block, Fault):
                num_rows += 1
                text = block.text.rstrip(b"\r\n").decode(errors="backslashreplace")
                on_bad_line(BadLine(num_rows, "quotes", f"line {block.line}: {block.problem}", text))
                yield pa.schema([(name, pa.binary()) for name in file_range.names]).empty_table()
                continue
            table, misfits = parsed(block, syntax, *columns)
            for row in misfits:
                number, problem = num_rows + row.number, misfit(row)
                on_bad_line(BadLine(number, "number of fields", problem, row.text, row.actual_columns))
            num_rows += table.num_rows + len(misfits)
            yield table


FORMAT = TableFormat((".csv", ".tsv", ".tab", ".txt"), "byte", _read_head, _read)
