"""Interface of a table format, and the file ranges that tasks read."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from etl.config import FilesConfig, Filters, Table
from etl.tables.blocks import ranges_within
from etl.tables.data_file import Deletes
from graphmill.errors import RawTableError, StorageError
from graphmill.storage.as_json import ArrowType
from graphmill.storage.fs import explained

_NUMBER_OF_FIELDS = (
    "; correct the line (in CSV, a field with commas needs quotes), or set etl.on_bad_row: quarantine to "
    "leave such lines out and write them to a table"
)
Cut = tuple[int, int] | None
SkipRow = Callable[[pacsv.InvalidRow], str]


@dataclass(frozen=True)
class FileRange:
    """A file of a table, or a range of the file."""

    table: Table
    uri: str
    columns: dict[str, str]
    """Name, for the reader, of the column of each field: lhs, rhs, relation, weight, id; or the dotted path
    of a field in a struct."""
    cut: Cut = None
    """[start, stop) of row groups, stripes or bytes; None: the whole file."""
    first_row: int = 0
    """Rows of the file before the range, if the format counts rows."""
    num_head_rows: int = 0
    """Lines of text at the start of the range that are no rows: blank lines, and the column names."""
    num_rows: int = 0
    """Estimated number of rows."""
    num_bytes: int = 0
    """Size of the file, in the first of its ranges; 0 in the others."""
    num_columns: int = 0
    nested: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Column and fields that lead to each of `columns` that is a field in a struct."""
    renamed: dict[str, ArrowType] = field(default_factory=dict)
    """Types of fields that hold structs, with the names that the table's log gives what is in them."""
    values: dict[str, str | None] = field(default_factory=dict)
    """Values of fields that the file's path gives."""
    types: dict[str, ArrowType] = field(default_factory=dict)
    """Types of the columns to read, if the file has types; JSON is read as these types."""
    integer_columns: tuple[str, ...] = ()
    """Columns of raw ids that are integers in the table, and become decimal strings."""
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
        """Columns to read, as the reader names them, each once."""
        return list(dict.fromkeys(self.columns.values()))


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
    num_head_rows: int = 0
    """Lines of text at the start of a file that is not cut, which are no rows."""


@dataclass(frozen=True)
class TableFormat:
    """A format of raw tables."""

    suffixes: tuple[str, ...]
    """Suffixes of file names."""
    unit: str
    """Unit of cuts if rows are counted from the cut: byte or stripe; empty: rows are counted in the file."""
    read_head: Callable[[str, FilesConfig, int], Head]
    """Reads the head of the file at a URI, and cuts the file into ranges of about that many rows."""
    read: Callable[[FileRange, SkipRow | None], Iterator[pa.RecordBatch]]
    """Reads a range; the handler gets lines with too few or too many fields, where there may be such."""
    select: Callable[[str, int, pc.Expression], Sequence[tuple[int, int, Cut]]] | None = None
    """Cuts the file again, without parts of which its statistics say that no row fulfils the expression."""


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn pyarrow's errors about a raw table into a `RawTableError`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network, not the table
            raise StorageError(f"{uri}: cannot read: {error.strerror}") from error
        hint = _NUMBER_OF_FIELDS if str(error).startswith("CSV parse error: ") else ""
        raise RawTableError(f"{uri}: cannot be read as a table: {error}{hint}") from error
    except RuntimeError:
        with explained("read", uri):  # hdfs-native raises errors without a type of their own
            raise


def cut_groups(
    sizes: Sequence[int], chunk_rows: int, kept: Collection[int] | None = None
) -> list[tuple[int, int, Cut]]:
    """Join row groups of the given sizes into ranges of about `chunk_rows` rows: the `cuts` of a `Head`.

    `kept` are the numbers of the groups to read; None: all.
    """
    starts = [0, *accumulate(sizes)]
    found = []
    for is_kept, run in groupby(range(len(sizes)), key=lambda number: kept is None or number in kept):
        first, *others = run
        if is_kept:
            own = ranges_within(sizes[first : first + 1 + len(others)], chunk_rows)
            found += [(first + groups.start, first + groups.stop) for groups in own]
    return [(starts[a], starts[b] - starts[a], (a, b)) for a, b in found if starts[b] > starts[a]]
