"""Rows of a raw table with all its columns, in their order, for jobs that add columns: `graphmill features`.

Columns keep their types. Text has no types: its columns are strings. Columns that only the folders of a file
name (`day=2026-11-01`) follow the others.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.run.checks import refuse_ignored, warn_of_left_out
from etl.tables.check_rows import BlockPosition, ids_or_null
from etl.tables.data_file import DataFile
from etl.tables.files import TableFiles, find_files
from etl.tables.formats import FileRange, format_of
from etl.tables.ranges import grouped, ranges_of_files
from etl.tables.read import read_whole
from graphmill import storage
from graphmill.config import Config, validated
from graphmill.config.sections.etl import WholeTableConfig
from graphmill.errors import RawTableError

PIECE_ROWS = 1 << 18
_GROUPS_LIKE_WORKERS = 4  # pieces must not depend on the workers
_WITHOUT_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

Group = Sequence[FileRange]


@dataclass(frozen=True)
class WholeTable:
    """A table that is read whole.

    Attributes:
        schema: columns of all rows.
        pieces: ranges of files, in the order of the rows.
        made_from: a hash of the files' names, sizes and times.
    """

    schema: pa.Schema
    pieces: Sequence[Group]
    made_from: str


def whole_table(config: Config, paths: Sequence[str], given: Mapping[str, Any]) -> WholeTable:
    """Find the columns and the pieces of a table; `given` are keys of `FilesConfig`."""
    content = {**given, "path": [storage.absolute(path) for path in paths]}
    named: WholeTableConfig = validated(WholeTableConfig, content, prefix=("TABLE",))
    inputs = find_files(config, named, "table")
    warn_of_left_out([inputs])
    refuse_ignored(inputs, given)
    files = inputs.files()
    names, schema = _columns(files, named)
    table = named.model_copy(update={"names": names})
    numbered = [(0, "table", table, file) for file in files]
    ranges = [_checked(file_range, len(names)) for file_range in ranges_of_files(numbered, PIECE_ROWS)]
    pieces = grouped(ranges, _GROUPS_LIKE_WORKERS, PIECE_ROWS)
    return WholeTable(schema, pieces, _hash(inputs, files))


def read_rows(
    schema: pa.Schema, id_columns: Sequence[str], group: Group
) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Read the rows of a piece in blocks: all columns, and the raw ids (string) of some, null where missing.

    Raises:
        RawTableError: a file cannot be read, has a column of another type, or ids that are no ids.
    """
    for file_range in group:
        fields = list(
            file_range.table.columns()
        )  # a block has those that all rows of its file share at its end
        for first_row, block in read_whole(file_range):
            at = BlockPosition(file_range.uri, dict(zip(schema.names, schema.names, strict=True)), first_row)
            columns = [
                _as(wanted.type, block[field], wanted.name, at)
                for field, wanted in zip(fields, schema, strict=True)
            ]
            rows = pa.table(columns, schema=schema)
            yield rows, [ids_or_null(rows[name], name, at) for name in id_columns]


def _columns(files: Sequence[DataFile], table: WholeTableConfig) -> tuple[tuple[str, ...], pa.Schema]:
    """Names and types of the columns of the first file that has any."""
    for file in files:
        if file.schema is not None:
            names, types = file.schema.names, dict(zip(file.schema.names, file.schema.types, strict=True))
        else:
            head = format_of(file.uri, table).read_head(file.uri, table, PIECE_ROWS)
            names, types = head.names, head.types
            if not names:
                continue
            names = [*names, *(value for value in file.values if value not in names)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise RawTableError(f"{file.uri}: two columns are named {twice!r}; rename one")
        kinds = [_WITHOUT_VIEWS.get(kind := types.get(name, pa.string()), kind) for name in names]
        return tuple(names), pa.schema(list(zip(names, kinds, strict=True)))
    raise RawTableError(f"{', '.join(table.path)}: expected a table, found files without columns")


def _checked(file_range: FileRange, num_columns: int) -> FileRange:
    """Refuse a file with more columns than the first: they would be lost."""
    if not file_range.snapshot and file_range.num_columns > num_columns:
        raise RawTableError(
            f"{file_range.uri}: expected {num_columns} columns as in the first file, found "
            f"{file_range.num_columns}; give files of one kind"
        )
    return file_range


def _as(kind: pa.DataType, column: pa.ChunkedArray, name: str, at: BlockPosition) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise at.error(name, f"expected {kind}, as in the first file, found {column.type}: {error}") from None


def _hash(inputs: TableFiles, files: Sequence[DataFile]) -> str:
    described = [[file.uri, file.size_bytes, file.mtime_ns] for file in files]
    text = json.dumps([inputs.describe(), described], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
