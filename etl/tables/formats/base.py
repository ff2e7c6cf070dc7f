"""Interface of a table format, and the ranges that files are cut into."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from etl.tables.blocks import ranges_within
from etl.tables.data_file import DataFile, Deletes
from etl.tables.nested import Path
from graphmill.config.sections.etl import FilesConfig, Filters, Table
from graphmill.formats.raw_tables.opened import CODECS, Cut, Utf8Stream, has_lines_of_bytes, suffixes_of
from graphmill.formats.raw_tables.rows import RawRows
from graphmill.storage.as_json import ArrowType

MIN_RANGE_BYTES = 1 << 20
_PACKED_BYTES = 1 << 15  # which gzip packs in 8 ms


@dataclass(frozen=True)
class BadLine:
    """A line of text that is no row."""

    row: int
    """Number of the row that the line should be, from 1 in its range."""
    reason: str
    detail: str
    text: str
    num_fields: int = 0
    """Number of its fields, if that is what is wrong."""


OF_DELIMITED = frozenset({"delimiter", "header", "quoting", "max_field_lines", "null_values"})
OF_TEXT = OF_DELIMITED | {"comment", "encoding"}

OnBadLine = Callable[[BadLine], object]
"""Takes note of a line to leave out, or raises an error."""


@dataclass(frozen=True)
class FileRange:
    """A file of a table, or a range of the file."""

    table: Table
    uri: str
    paths: dict[str, Path]
    """Column of each field (lhs, rhs, relation, weight, id) as the reader names it, and the fields that lead
    from there to a value in a struct."""
    cut: Cut = None
    """[start, stop) of row groups, stripes or bytes; None: the whole file."""
    first_row: int = 0
    """Rows of the file before the range, if the format counts rows."""
    head_bytes: int = 0
    """Bytes of text, as UTF-8, before the rows of a file that is not cut: the column names."""
    num_rows: int = 0
    """Estimated number of rows."""
    num_bytes: int = 0
    """Size of the file, in the first of its ranges; 0 in the others."""
    num_columns: int = 0
    renamed: dict[str, ArrowType] = field(default_factory=dict)
    """Types of fields that hold structs, with the names that the table's log gives what is in them."""
    values: dict[str, str | None] = field(default_factory=dict)
    """Values of fields that the file's path gives."""
    types: dict[str, ArrowType] = field(default_factory=dict)
    """Types of the columns to read, if the file has types; JSON is read as these types."""
    integer_columns: tuple[str, ...] = ()
    """Fields whose raw ids are integers in the table, and become decimal strings."""
    filters: Filters = ()
    """Conditions on the rows; the column `c` of a condition is the field `filter c`."""
    deletes: tuple[Deletes, ...] = ()
    """Deleted rows of the file, which are not read."""
    snapshot: str = ""
    """Snapshot that names the file, for messages."""
    number: int = 0
    """Number of the file among all files of the run, in reading order."""

    @property
    def names(self) -> list[str]:
        """Columns to read, or dotted paths, as the reader names them, each once."""
        return list(dict.fromkeys(map(".".join, self.paths.values())))


@dataclass(frozen=True)
class Head:
    """Content of the head of a file: its columns, and the ranges to cut the file into."""

    names: list[str]
    cuts: Sequence[tuple[int, int, Cut]]
    """First row, number of rows, and cut of each range."""
    types: dict[str, pa.DataType] = field(default_factory=dict)
    """Types of the columns, if the file has types."""
    schema: pa.Schema | None = None
    """Columns with their metadata, if the file has such."""
    reader_names: list[str] | None = None
    """Names that the reader gives the columns; None: `names`."""
    head_bytes: int = 0
    """Bytes of text, as UTF-8, before the rows of a file that is not cut."""


@dataclass(frozen=True)
class TableFormat:
    """A format of raw tables."""

    suffixes: tuple[str, ...]
    """Suffixes of file names."""
    unit: str
    """Unit of cuts if rows are counted from the cut: byte or stripe; empty: rows are counted in the file."""
    read_head: Callable[[str, FilesConfig, int], Head]
    """Reads the head of the file at a URI, and cuts the file into ranges of about that many rows."""
    read: Callable[[FileRange, OnBadLine], Iterator[pa.RecordBatch | pa.Table]]
    """Reads a range; the handler gets the lines that are no rows, where there may be such, before the rows
    that follow or surround them, which are yielded soon: maybe a table without rows."""
    select: Callable[[str, int, pc.Expression], Sequence[tuple[int, int, Cut]]] | None = None
    """Cuts the file again, without parts of which its statistics say that no row fulfils the expression."""
    ignores: frozenset[str] = frozenset()
    """Keys of a table that have no effect on such files."""


def cut_groups(
    sizes: Sequence[int], chunk_rows: int, kept: Collection[int] | None = None
) -> list[tuple[int, int, Cut]]:
    """Join row groups of the given sizes into ranges of about `chunk_rows` rows: the `cuts` of a `Head`.

    `kept` are the numbers of the groups to read; None: all.
    """
    starts = [0, *accumulate(sizes)]
    runs = []
    for is_kept, run in groupby(range(len(sizes)), key=lambda number: kept is None or number in kept):
        first, *others = run
        if is_kept:
            own = ranges_within(sizes[first : first + 1 + len(others)], chunk_rows)
            runs += [(first + groups.start, first + groups.stop) for groups in own]
    return [(starts[a], starts[b] - starts[a], (a, b)) for a, b in runs if starts[b] > starts[a]]


def cut_lines(
    stream: Utf8Stream, table: FilesConfig, rows: RawRows, head: bytes, chunk_rows: int
) -> list[tuple[int, int, Cut]]:
    """Cut a file after the text `head`, by its first rows."""
    num_bytes, codec = DataFile(stream.uri).num_bytes(), suffixes_of(stream.uri)[1]
    count, end = rows.count(len(head))
    sample, head_bytes = stream.raw(rows.text[:end]), len(stream.raw(head)) if head else 0
    row_bytes = (len(sample) - head_bytes) / max(count, 1)
    if codec:
        packed, part = pa.BufferOutputStream(), sample[:_PACKED_BYTES]
        with pa.CompressedOutputStream(packed, CODECS[codec]) as packing:
            packing.write(part)
        num_bytes = num_bytes * len(part) // packed.getvalue().size
    if codec or rows.syntax.has_quotes or head[-1:] not in b"\n" or not has_lines_of_bytes(table.encoding):
        return [(0, round((num_bytes - head_bytes) / row_bytes), None)]
    # Nine tenths: where lines get shorter, a range does not end with a small chunk.
    range_bytes = max(int(row_bytes * chunk_rows * 0.9), MIN_RANGE_BYTES)
    starts = [*range(head_bytes, num_bytes, range_bytes), num_bytes]
    return [(0, round((stop - start) / row_bytes), (start, stop)) for start, stop in pairwise(starts)]
