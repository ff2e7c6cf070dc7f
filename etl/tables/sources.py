"""What the files of raw tables are cut into: sources, each read by one task.

A source is a run of a parquet file's row groups or of an ORC file's stripes, a range of bytes of a text
file, or a whole file where nothing tells where its rows begin: text with quotes (its fields may hold
newlines) or compression. A line belongs to the range that its first byte lies in.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.orc as paorc
import pyarrow.parquet as pq

from etl.config import FilesConfig, Table
from etl.tables.files import CODECS, delimiter_of, format_of, path_values, quoting_of, suffixes_of
from graphmill import storage
from graphmill.errors import RawTableError, StorageError
from graphmill.storage.as_json import AsJson
from graphmill.storage.fs import explained

PEEK_BYTES = 1 << 20
MIN_RANGE_BYTES = 1 << 20
JSON_BLOCK_BYTES = 8 << 20  # a line must fit
_TYPICAL_COMPRESSION = 5


@dataclass(frozen=True)
class Source:
    """What one task reads: a file of a table, or a part of it."""

    table: Table
    uri: str
    columns: dict[str, str]
    """Part of an edge, or `id` -> name of its column; of a text file `f{number}`."""
    cut: tuple[int, int] | None = None
    """[start, stop) of row groups, stripes or bytes; None: the whole file."""
    first_row: int = 0
    """Rows of the file before the source, where that is known."""
    num_head_rows: int = 0
    """Of text: rows of the source that are none of the table's: blank lines, and the column names."""
    num_rows: int = 0
    """Roughly."""
    num_bytes: int = 0
    """Of the file, in the first of its sources; 0 in the others."""
    num_columns: int = 0
    values: dict[str, str | None] = field(default_factory=dict)
    """Parts that the file's path gives."""
    types: dict[str, Annotated[pa.DataType, AsJson]] = field(default_factory=dict)
    """Types of JSON's columns."""
    integer_columns: tuple[str, ...] = ()
    """Columns of raw ids that are integers in the table, and become decimal strings."""


@dataclass(frozen=True)
class _Columns:
    """What the head of a file tells."""

    names: list[str]
    types: dict[str, pa.DataType]
    cuts: Sequence[tuple[int, int, tuple[int, int] | None]]
    """First row, number of rows, and [start, stop) of each source."""
    num_head_rows: int = 0
    """Of a file of text that is not cut."""


def find_sources(label: str, table: Table, uri: str, chunk_rows: int) -> list[Source]:
    """The sources that the file is cut into, its columns found; `label` names the table in figures.

    Raises:
        RawTableError: the file cannot be read, or lacks a column.
    """
    looks = {"parquet": _look_at_parquet, "orc": _look_at_orc, "json": _look_at_json, "csv": _look_at_text}
    file_format = format_of(uri, table)
    found = looks[file_format](uri, table, chunk_rows)
    if not found.cuts:
        return []
    positions, values = _positions(table, found.names, uri)
    names = [f"f{number}" for number in range(len(found.names))] if file_format == "csv" else found.names
    columns = {part: names[position] for part, position in positions.items()}
    twice = next((column for column in columns.values() if names.count(column) > 1), None)
    if twice is not None:
        raise RawTableError(f"{uri}: two columns are named {twice!r}, and cannot be told apart; rename one")
    integers = tuple(
        f"{label}.{part}"
        for part, column in columns.items()
        if part != "weight" and pa.types.is_integer(found.types.get(column, pa.string()))
    )
    status = storage.status(uri)
    num_bytes = status.size_bytes if status else 0
    types = {name: found.types[name] for name in columns.values()} if file_format == "json" else {}
    weight = columns.get("weight", "")
    if pa.types.is_integer(types.get(weight, pa.null())):
        types[weight] = pa.float64()  # further on in the file there may be fractions
    return [
        Source(
            table,
            uri,
            columns,
            cut,
            first,
            found.num_head_rows if cut is None else 0,
            num,
            0 if n else num_bytes,
            len(found.names),
            values,
            types,
            integers,
        )
        for n, (first, num, cut) in enumerate(found.cuts)
    ]


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn what pyarrow finds wrong with a raw table into a `RawTableError`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network, not the table
            raise StorageError(f"{uri}: cannot read: {error.strerror}") from error
        raise RawTableError(f"{uri}: cannot be read as a table: {error}") from error
    except RuntimeError:
        with explained("read", uri):  # what hdfs-native raises has no type of its own
            raise


@contextmanager
def open_parquet(uri: str, dictionary_column: str | None = None) -> Iterator[pq.ParquetFile]:
    """The parquet file at `uri`, one of its columns read as a dictionary."""
    columns = [dictionary_column] if dictionary_column else None
    with (
        storage.open_input(uri) as stream,
        reading(uri),
        pq.ParquetFile(stream, read_dictionary=columns) as parquet,
    ):
        yield parquet


@contextmanager
def open_text(uri: str) -> Iterator[pa.NativeFile]:
    """The text of a file, unpacked."""
    codec = suffixes_of(uri)[1]
    with storage.open_input(uri) as stream:
        yield pa.CompressedInputStream(stream, CODECS[codec]) if codec else stream


@contextmanager
def open_lines(source: Source) -> Iterator[pa.NativeFile | None]:
    """The text of a source: of a range of bytes, the lines that begin in it; None: there are none."""
    with open_text(source.uri) as stream:
        if source.cut is None:
            yield stream
            return
        start, stop = (_line_start(stream, offset) for offset in source.cut)
        yield stream.get_stream(start, stop - start) if stop > start else None


def _line_start(stream: pa.NativeFile, offset: int) -> int:
    """Offset of the first line that begins at `offset` or after it."""
    if offset == 0:
        return 0
    at = offset - 1
    while True:
        content: bytes = stream.read_at(1 << 16, at)
        end = content.find(b"\n")
        if end >= 0:
            return at + end + 1
        if not content:
            return at
        at += len(content)


def _look_at_parquet(uri: str, table: FilesConfig, chunk_rows: int) -> _Columns:
    with open_parquet(uri) as parquet:
        schema = parquet.schema_arrow
        sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    types = dict(zip(schema.names, schema.types, strict=True))
    return _Columns(schema.names, types, list(_runs(sizes, chunk_rows)))


def _look_at_orc(uri: str, table: FilesConfig, chunk_rows: int) -> _Columns:
    with storage.open_input(uri) as stream, reading(uri):
        orc = paorc.ORCFile(stream)
        schema, num_rows, num_stripes = orc.schema, orc.nrows, orc.nstripes
    # The file does not tell how many rows each stripe has: they are taken for equal.
    each = num_rows // max(num_stripes, 1)
    cuts = [(0, num, cut) for _, num, cut in _runs([each] * num_stripes, chunk_rows)]
    return _Columns(schema.names, dict(zip(schema.names, schema.types, strict=True)), cuts)


def _look_at_json(uri: str, table: FilesConfig, chunk_rows: int) -> _Columns:
    with open_text(uri) as stream, reading(uri):
        sample: bytes = stream.read(PEEK_BYTES)
    lines = sample[: sample.rfind(b"\n") + 1] or sample
    if not lines.strip():
        return _Columns([], {}, [])
    options = pajson.ReadOptions(use_threads=False, block_size=JSON_BLOCK_BYTES)
    with reading(uri):
        schema = pajson.read_json(pa.BufferReader(lines), options).schema
    types = {name: _json_type(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    return _Columns(schema.names, types, _cut_lines(uri, sample, 0, chunk_rows, cuttable=True))


def _json_type(found: pa.DataType) -> pa.DataType:
    """The type to read a column as: never a time, which JSON does not have and pyarrow guesses."""
    if pa.types.is_list(found):
        return pa.list_(_json_type(found.value_type))
    return found if pa.types.is_integer(found) or pa.types.is_floating(found) else pa.string()


def _look_at_text(uri: str, table: FilesConfig, chunk_rows: int) -> _Columns:
    with open_text(uri) as stream, reading(uri):
        sample: bytes = stream.read(PEEK_BYTES)
    text = io.StringIO(sample.decode("utf-8-sig", errors="replace"))
    quoting = quoting_of(uri, table)
    lines = csv.reader(
        text,
        delimiter=delimiter_of(uri, table),
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
    )
    try:
        num_blank, first = next(((number, line) for number, line in enumerate(lines) if line), (0, []))
    except csv.Error as error:
        raise RawTableError(f"{uri}: its first row cannot be read as text: {error}") from error
    if table.header and not first:
        raise RawTableError(f"{uri}: expected a row of column names, found an empty file; set header: false")
    if not first or (table.header and not text.read().strip()):
        return _Columns([], {}, [])
    names = first if table.header else [f"f{number}" for number in range(len(first))]
    head = _first_line_bytes(sample) if table.header else 0
    cuts = _cut_lines(uri, sample, head, chunk_rows, cuttable=not quoting and head >= 0)
    return _Columns(names, {}, cuts, num_blank + 1 if table.header else 0)


def _first_line_bytes(sample: bytes) -> int:
    """Bytes up to the end of the first line that is not empty; -1: the sample does not hold its end."""
    stripped = sample.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    end = sample.find(b"\n", len(sample) - len(stripped))
    return end + 1 if end >= 0 else -1


def _cut_lines(
    uri: str, sample: bytes, head: int, chunk_rows: int, *, cuttable: bool
) -> list[tuple[int, int, tuple[int, int] | None]]:
    """Sources of a file of lines whose rows begin at byte `head`; `sample` is its beginning."""
    line_bytes = len(sample) / max(sample.count(b"\n"), 1)
    status = storage.status(uri)
    num_bytes = status.size_bytes if status else 0
    if suffixes_of(uri)[1]:
        return [(0, int(num_bytes * _TYPICAL_COMPRESSION / line_bytes), None)]
    # Nine tenths: where lines get shorter, a range does not leave a small chunk at its end.
    range_bytes = max(int(line_bytes * chunk_rows * 0.9), MIN_RANGE_BYTES)
    if not cuttable:
        return [(0, int(num_bytes / line_bytes), None)]
    starts = [*range(head, num_bytes, range_bytes), num_bytes]
    return [(0, int((stop - start) / line_bytes), (start, stop)) for start, stop in pairwise(starts)]


def _runs(sizes: Sequence[int], chunk_rows: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """First row, rows and [start, stop) of runs of row groups of about `chunk_rows` rows together."""
    first_row = start = num_rows = 0
    for number, size in enumerate(sizes):
        if num_rows and num_rows + size > chunk_rows:
            yield first_row, num_rows, (start, number)
            first_row, start, num_rows = first_row + num_rows, number, 0
        num_rows += size
    if num_rows:
        yield first_row, num_rows, (start, len(sizes))


def _positions(
    table: FilesConfig, names: list[str], uri: str
) -> tuple[dict[str, int], dict[str, str | None]]:
    """Position of the column of each part, and the values of parts that the path gives.

    Raises:
        RawTableError: there is no such column.
    """
    positions: dict[str, int] = {}
    values: dict[str, str | None] = {}
    given = path_values(uri)
    for part, column in table.columns().items():
        if isinstance(column, int) and column < len(names):
            positions[part] = column
        elif isinstance(column, str) and names.count(column) == 1:
            positions[part] = names.index(column)
        elif isinstance(column, str) and column not in names and column in given:
            values[part] = given[column]
        else:
            twice = isinstance(column, str) and column in names
            found = "two columns of that name; name it by its number" if twice else f"columns {names}"
            raise RawTableError(f"{uri}: expected a column {column!r} ({part}), found {found}")
    if len(set(positions.values())) < len(positions):
        raise RawTableError(f"{uri}: two parts of an edge are the same column: {table.columns()}")
    if not positions:
        raise RawTableError(f"{uri}: all columns come from the file's path; no row differs from another")
    return positions, values
