"""Delimited text as columns of strings: blocks of whole rows, and the named columns of a user's CSV."""

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.opened import open_text
from graphmill.formats.raw_tables.rows import Fault, RawRows, Syntax

CSV = Syntax(has_quotes=True)
LINES = Syntax("\x1f")
"""One field a line, as no text has this delimiter."""


def names_in(row: bytes, syntax: Syntax) -> list[str]:
    """Read column names in a row; they may be no UTF-8, which is a `UnicodeDecodeError`."""
    reads = pacsv.ReadOptions(use_threads=False, block_size=len(row))
    names: list[str] = pacsv.read_csv(pa.BufferReader(row), reads, _parsing(syntax)).column_names
    return names


def parsed(
    block: bytes, syntax: Syntax, num_columns: int, columns: Sequence[str], null_values: Collection[str] = ()
) -> tuple[pa.Table, list[pacsv.InvalidRow]]:
    """Parse columns of whole rows as bytes; rows with other numbers of fields come apart.

    Columns are named by their numbers, `f0` and so on, so that two columns of one name do no harm.
    """
    misfits: list[pacsv.InvalidRow] = []

    def note(row: pacsv.InvalidRow) -> str:
        misfits.append(row)
        return "skip"

    # Bytes, not strings: pyarrow would report bad UTF-8 without its row.
    conversion = pacsv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.binary()),
        null_values=list(null_values),
        strings_can_be_null=bool(null_values),
        quoted_strings_can_be_null=False,
    )
    reads = pacsv.ReadOptions(use_threads=False, column_names=numbered(num_columns), block_size=len(block))
    table = pacsv.read_csv(pa.BufferReader(block), reads, _parsing(syntax, note), conversion)
    return table, misfits


def numbered(num_columns: int) -> list[str]:
    """Name columns by their numbers."""
    return [f"f{number}" for number in range(num_columns)]


def misfit(row: pacsv.InvalidRow) -> str:
    """Say what is wrong with the number of a row's fields."""
    is_one_more = row.actual_columns == row.expected_columns + 1
    of_r = "; R's write.table needs row.names = FALSE" if is_one_more else ""
    return (
        f"expected {row.expected_columns} columns, found {row.actual_columns}; in CSV, a field with commas "
        f"needs quotes{of_r}"
    )


def column_names(uri: str) -> list[str]:
    """Read the names, or what else the first row of a CSV file has; an empty file has none."""
    with open_text(uri) as stream, reading(uri):
        return _first(uri, RawRows(stream.read, CSV, uri), CSV)[0]


def iter_strings(
    uri: str, columns: Sequence[int], syntax: Syntax = CSV, *, has_header: bool = True
) -> Iterator[list[pa.Array]]:
    """Read columns of a file, by number, as strings, some thousand rows at a time."""
    num_rows = 0
    with open_text(uri) as stream, reading(uri):
        rows = RawRows(stream.read, syntax, uri)
        names, end = _first(uri, rows, syntax)
        by_number = numbered(len(names))
        for block in rows.blocks(end if has_header or not names else 0):
            if isinstance(block, Fault):
                raise RawTableError(f"{uri}: line {block.line}: {block.problem}")
            table, misfits = parsed(block, syntax, len(names), [by_number[number] for number in columns])
            for row in misfits:
                raise RawTableError(f"{uri}: row {num_rows + row.number}: {misfit(row)}")
            num_rows += len(table)
            yield [column.cast(pa.string()).combine_chunks() for column in table.columns]


def _first(uri: str, rows: RawRows, syntax: Syntax) -> tuple[list[str], int]:
    first, end = rows.first(is_header=True)
    try:
        return names_in(first, syntax) if first else [], end
    except UnicodeDecodeError as error:
        raise RawTableError(f"{uri}: expected text in UTF-8, found {error.object[:40]!r}") from error


def _parsing(syntax: Syntax, note: object = None) -> pacsv.ParseOptions:
    quote = '"' if syntax.has_quotes else False
    return pacsv.ParseOptions(delimiter=syntax.delimiter, quote_char=quote, invalid_row_handler=note)
