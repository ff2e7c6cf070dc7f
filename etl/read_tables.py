"""Raw tables -> blocks of checked rows, in memory bounded by the block's size.

A source is what one task reads: a run of a parquet file's row groups, or a whole text or ORC file, as one
stream (quoted fields may hold newlines, so text cannot be cut without reading it). A source comes out as
blocks of at most `chunk_rows` rows with the columns

    lhs, rhs     string, never null or empty; integers become decimal strings, other bytes stay as they are
    relation     dictionary of strings, where the table has a relation column
    weight       float32, finite, not negative, where it has a weight column
"""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc
import pyarrow.parquet as pq

from etl.blocks import cut
from etl.check_rows import Place, checked
from etl.config import Column, TableConfig
from etl.table_files import CODECS, delimiter_of, format_of, quoting_of, suffixes_of
from graphmill import storage
from graphmill.errors import RawTableError, StorageError

BLOCK_BYTES = 512 << 20  # a block ends here too, so that long ids do not make it large
_BATCH_ROWS = 1 << 17
_PEEK_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """What one task reads: a file of a table, or a run of its row groups."""

    table: TableConfig
    uri: str
    columns: dict[str, str]
    """Part of an edge (lhs, rhs, relation, weight) -> name of its column; of a text file `f{number}`."""
    first_row: int = 0
    row_groups: tuple[int, int] | None = None
    """[start, stop) of a parquet file's row groups; None: the whole file."""
    integer_columns: tuple[str, ...] = ()
    """`tables[N].lhs`, `.rhs`: raw ids that are integers in the table, and become decimal strings."""


def find_sources(table_number: int, table: TableConfig, uri: str, chunk_rows: int) -> list[Source]:
    """The sources that the file is cut into, its columns found.

    Raises:
        RawTableError: the file cannot be read, or lacks a column.
    """
    file_format = format_of(uri, table)
    if file_format == "csv":
        with _reading(uri):
            names, has_rows = _peek_text(uri, table)
        positions = _positions(table, names, uri) if has_rows else {}
        columns = {part: f"f{position}" for part, position in positions.items()}
        return [Source(table, uri, columns)] if has_rows else []
    groups: list[tuple[int, tuple[int, int] | None]] = [(0, None)]
    if file_format == "parquet":
        with _open_parquet(uri) as parquet:
            schema = parquet.schema_arrow
            sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
        groups = list(_runs(sizes, chunk_rows))
    else:
        with storage.open_input(uri) as stream, _reading(uri):
            schema = paorc.ORCFile(stream).schema
    positions = _positions(table, schema.names, uri)
    columns = {part: schema.names[position] for part, position in positions.items()}
    integers = tuple(
        f"tables[{table_number}].{part}"
        for part in ("lhs", "rhs")
        if pa.types.is_integer(schema.field(positions[part]).type)
    )
    return [Source(table, uri, columns, first_row, run, integers) for first_row, run in groups]


def read_blocks(source: Source, chunk_rows: int) -> Iterator[tuple[Place, pa.Table]]:
    """The source's rows, block by block, checked (see the head of this file), and where each block stands.

    Raises:
        RawTableError: a row cannot become an edge; the message names file, row and column.
    """
    readers = {"parquet": _read_parquet, "orc": _read_orc, "csv": _read_text}
    columns = {part: str(column) for part, column in _parts_of_edge(source.table).items()}
    names = list(source.columns.values())
    first_row = source.first_row
    with _reading(source.uri):
        batches = readers[format_of(source.uri, source.table)](source)
        rows = (pa.table(batch).select(names).rename_columns(list(source.columns)) for batch in batches)
        for block in cut(rows, chunk_rows, BLOCK_BYTES):
            place = Place(source.uri, columns, first_row)
            yield place, checked(block, place)
            first_row += block.num_rows


def _runs(sizes: list[int], chunk_rows: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """First row and [start, stop) of runs of row groups of about `chunk_rows` rows together."""
    first_row = start = 0
    num_rows = 0
    for number, size in enumerate(sizes):
        if num_rows and num_rows + size > chunk_rows:
            yield first_row, (start, number)
            first_row, start, num_rows = first_row + num_rows, number, 0
        num_rows += size
    if num_rows:
        yield first_row, (start, len(sizes))


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """Turn what pyarrow finds wrong with a raw table into a `RawTableError`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network, not the table
            raise StorageError(f"{uri}: cannot read: {error.strerror}") from error
        raise RawTableError(f"{uri}: cannot be read as a table: {error}") from error


@contextmanager
def _open_parquet(uri: str, dictionary_column: str | None = None) -> Iterator[pq.ParquetFile]:
    columns = [dictionary_column] if dictionary_column else None
    with (
        storage.open_input(uri) as stream,
        _reading(uri),
        pq.ParquetFile(stream, read_dictionary=columns) as parquet,
    ):
        yield parquet


def _read_parquet(source: Source) -> Iterator[pa.RecordBatch]:
    # Names of relations repeat: as a dictionary they are read twice as fast.
    with _open_parquet(source.uri, source.columns.get("relation")) as parquet:
        groups = range(*(source.row_groups or (0, parquet.num_row_groups)))
        names = list(source.columns.values())
        yield from parquet.iter_batches(_BATCH_ROWS, groups, names, use_threads=False)


def _read_orc(source: Source) -> Iterator[pa.RecordBatch]:
    with storage.open_input(source.uri) as stream:
        orc = paorc.ORCFile(stream)
        for stripe in range(orc.nstripes):
            yield orc.read_stripe(stripe, list(source.columns.values()))


def _read_text(source: Source) -> Iterator[pa.RecordBatch]:
    table, uri = source.table, source.uri
    quoting = quoting_of(uri, table)
    with _open_text(uri) as stream:
        yield from pacsv.open_csv(
            stream,
            # Columns are named by number: so doubled names do no harm.
            pacsv.ReadOptions(
                use_threads=False, autogenerate_column_names=True, skip_rows_after_names=int(table.header)
            ),
            pacsv.ParseOptions(
                delimiter=delimiter_of(uri, table),
                quote_char='"' if quoting else False,
                newlines_in_values=quoting,
            ),
            # Bytes, not strings: pyarrow would tell of bad UTF-8 without its row.
            pacsv.ConvertOptions(
                include_columns=list(source.columns.values()),
                column_types=dict.fromkeys(source.columns.values(), pa.binary()),
                null_values=[],
                strings_can_be_null=False,
            ),
        )


@contextmanager
def _open_text(uri: str) -> Iterator[pa.NativeFile]:
    codec = suffixes_of(uri)[1]
    with storage.open_input(uri) as stream:
        yield pa.CompressedInputStream(stream, CODECS[codec]) if codec else stream


def _peek_text(uri: str, table: TableConfig) -> tuple[list[str], bool]:
    """The names of a text file's columns (`f0`, `f1`, ... without a header), and whether rows follow."""
    with _open_text(uri) as stream:
        text = io.StringIO(stream.read(_PEEK_BYTES).decode("utf-8-sig", errors="replace"))
    lines = csv.reader(
        text,
        delimiter=delimiter_of(uri, table),
        quoting=csv.QUOTE_MINIMAL if quoting_of(uri, table) else csv.QUOTE_NONE,
    )
    try:
        first = next((line for line in lines if line), [])
    except csv.Error as error:
        raise RawTableError(f"{uri}: its first row cannot be read as text: {error}") from error
    if table.header and not first:
        raise RawTableError(f"{uri}: expected a row of column names, found an empty file; set header: false")
    if table.header:
        return first, bool(text.read().strip())
    return [f"f{number}" for number in range(len(first))], bool(first)


def _parts_of_edge(table: TableConfig) -> dict[str, Column]:
    """Which column is which part of an edge."""
    parts = {"lhs": table.lhs, "rhs": table.rhs, "relation": table.relation_column, "weight": table.weight}
    return {part: column for part, column in parts.items() if column is not None}


def _positions(table: TableConfig, names: list[str], uri: str) -> dict[str, int]:
    """Position of the column of each part of an edge.

    Raises:
        RawTableError: there is no such column.
    """
    positions: dict[str, int] = {}
    for part, column in _parts_of_edge(table).items():
        if isinstance(column, int) and column < len(names):
            positions[part] = column
        elif isinstance(column, str) and names.count(column) == 1:
            positions[part] = names.index(column)
        else:
            twice = isinstance(column, str) and column in names
            found = "two columns of that name; name it by its number" if twice else f"columns {names}"
            raise RawTableError(f"{uri}: expected a column {column!r} ({part}), found {found}")
    if len(set(positions.values())) < len(positions):
        raise RawTableError(f"{uri}: two parts of an edge are the same column: {_parts_of_edge(table)}")
    return positions
