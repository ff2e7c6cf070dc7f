"""The file ranges that the files of raw tables are cut into; one task reads one range.

A range is a run of row groups of a parquet file or of stripes of an ORC file, or a range of bytes of a text
file. A file is one range if the places of its rows are unknown: text with quotes, whose fields may hold
newlines, or compressed text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import pyarrow as pa

from etl.tables import nested
from etl.tables.data_file import DataFile, has_ids, missing_file, path_in_file, with_names_of
from etl.tables.filters import columns_of, expression, filter_field
from etl.tables.formats import FileRange, Head, TableFormat, format_of
from etl.tables.lake.logs import refuse_marked
from graphmill.config.sections.etl import Column, FilesConfig, Table, WholeTableConfig
from graphmill.errors import NotFoundError, RawTableError
from graphmill.formats.raw_ids import holds_whole_numbers
from graphmill.formats.raw_tables.opened import Cut

MIN_BALANCED_BYTES = 16 << 20
MAX_GROUP_BYTES = 64 << 20
_MAX_ROUNDS = 4


NumberedFile = tuple[int, str, Table, DataFile]
"""Number among the files of a run, label of the table, table, file."""


def ranges_of_files(files: Sequence[NumberedFile], chunk_rows: int) -> list[FileRange]:
    """Find the ranges of files; see `find_ranges`."""
    return [
        replace(file_range, number=number)
        for number, _, table, file in files
        for file_range in find_ranges(table, file, chunk_rows)
    ]


def find_ranges(table: Table, file: DataFile, chunk_rows: int) -> list[FileRange]:
    """Find the columns of a file, and cut the file into ranges."""
    file_format = format_of(file.uri, table, file.snapshot)
    try:
        head = file_format.read_head(file.uri, table, chunk_rows)
    except NotFoundError as error:
        raise (missing_file(file) if file.snapshot else error) from error
    if head.schema is not None and not file.snapshot:
        refuse_marked(file.uri, head.schema.metadata)
    if not head.cuts:
        return []
    paths, values = _columns(table, head, file)
    types = {
        field: nested.type_at(head.types[path[0]], path[1:]) for field, path in paths.items() if head.types
    }
    ids = table.columns().keys() - {"weight"}
    integers = tuple(field for field, kind in types.items() if field in ids and holds_whole_numbers(kind))
    if pa.types.is_integer(types.get("weight", pa.null())):
        types["weight"] = pa.float64()  # later rows of JSON may have fractions
    num_bytes = file.num_bytes()
    whole = FileRange(
        table,
        file.uri,
        paths,
        num_columns=len(head.names),
        renamed=_renamed(table, head, file, paths),
        values=values,
        types=nested.joined((paths[field], kind) for field, kind in types.items()),
        integer_columns=integers,
        filters=file.filters,
        deletes=file.deletes,
        snapshot=file.snapshot,
    )
    return [
        replace(
            whole,
            cut=cut,
            first_row=first_row,
            head_bytes=head.head_bytes if cut is None else 0,
            num_rows=num_rows,
            num_bytes=0 if number else num_bytes,
        )
        for number, (first_row, num_rows, cut) in enumerate(_cuts(file, file_format, head, paths, chunk_rows))
    ]


def _renamed(
    table: FilesConfig, head: Head, file: DataFile, paths: Mapping[str, nested.Path]
) -> dict[str, pa.DataType]:
    """Find the names in columns of structs, of a table that is read whole, as its log has them."""
    if file.schema is None or not isinstance(table, WholeTableConfig):
        return {}
    own = table.columns()
    kinds = {
        field: (file.schema.field(own[field]).type, head.types[path[0]])
        for field, path in paths.items()
        if field in own
    }
    names = {
        field: with_names_of(wanted, kind, has_ids=has_ids(head.schema))
        for field, (wanted, kind) in kinds.items()
        if kind.num_fields
    }
    return {field: kind for field, kind in names.items() if kind != kinds[field][1]}


def _cuts(
    file: DataFile, file_format: TableFormat, head: Head, paths: Mapping[str, nested.Path], chunk_rows: int
) -> Sequence[tuple[int, int, Cut]]:
    if not file.filters or file_format.select is None:
        return head.cuts
    names = {column: paths.get(filter_field(column), ()) for column in columns_of(file.filters)}
    top = {column: path[0] for column, path in names.items() if len(path) == 1}
    named = tuple(
        tuple((top.get(column, ""), operator, value) for column, operator, value in every)
        for every in file.filters
    )
    return file_format.select(file.uri, chunk_rows, expression(named, head.types))


def _columns(
    table: FilesConfig, head: Head, file: DataFile
) -> tuple[dict[str, nested.Path], dict[str, str | None]]:
    """Find the column of each field, as the reader names it, and the values of fields that all rows share.

    Columns that only filters name are fields too. A column may be a field in a struct; a column that really
    has the dotted name comes first.
    """
    if file.schema is not None:
        return _columns_of_log(table, head, file, file.schema)
    reader_names = head.reader_names or head.names
    paths: dict[str, nested.Path] = {}
    values: dict[str, str | None] = {}
    for field, column in _wanted(table, file).items():
        at = [number for number, name in enumerate(head.names) if column in (number, name)]
        path = nested.find(head.types, column) if isinstance(column, str) else None
        if len(at) == 1:
            paths[field] = (reader_names[at[0]],)
        elif path and not at:
            paths[field] = path
        elif isinstance(column, str) and not at and column in file.values:
            values[field] = file.values[column]
        else:
            known = list(nested.known(head.names, head.types))
            way_out = "name it by its number" if head.reader_names else "rename one"
            hint = "; is the delimiter right?" if len(known) == 1 and not head.types else ""
            here = f"two columns of that name; {way_out}" if at else f"columns {known}{hint}"
            raise RawTableError(f"{file.uri}: expected a column {column!r} ({field}), found {here}")
    twice = next((path[0] for path in paths.values() if reader_names.count(path[0]) > 1), None)
    if twice is not None:
        raise RawTableError(
            f"{file.uri}: two columns are named {twice!r}, and cannot be told apart; rename one"
        )
    _check_apart(table, file, paths)
    return paths, values


def _columns_of_log(
    table: FilesConfig, head: Head, file: DataFile, schema: pa.Schema
) -> tuple[dict[str, nested.Path], dict[str, str | None]]:
    """Find the columns of a file by its table's log; null where the file was written without the column."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    paths: dict[str, nested.Path] = {}
    values: dict[str, str | None] = {}
    for field, column in _wanted(table, file).items():
        path: nested.Path | None
        if isinstance(column, int):
            path = (schema.names[column],) if column < len(schema) else None
        elif isinstance(table, WholeTableConfig):
            path = (column,) if column in kinds else None
        else:
            path = nested.find(kinds, column)
        if path is None:
            known = list(nested.known(schema.names, kinds))
            raise RawTableError(f"{file.uri}: expected a column {column!r} ({field}), found columns {known}")
        here = path_in_file(path, schema, head.schema, file.uri)
        if here is not None:
            paths[field] = here
        else:
            values[field] = file.values.get(".".join(path))
    _check_apart(table, file, paths)
    return paths, values


def _wanted(table: FilesConfig, file: DataFile) -> dict[str, Column]:
    """Return the column of each field to read: of an edge or entity, and of the filters."""
    return {**table.columns(), **{filter_field(column): column for column in columns_of(file.filters)}}


def _check_apart(table: FilesConfig, file: DataFile, paths: Mapping[str, nested.Path]) -> None:
    own = [paths[field] for field in table.columns() if field in paths]
    if len(set(own)) < len(own):
        raise RawTableError(f"{file.uri}: two parts of an edge are the same column: {table.columns()}")
    if not own:
        why = "the file has none of them" if file.snapshot else "no row differs from another"
        raise RawTableError(f"{file.uri}: all columns come from the file's path or its table's log; {why}")


def balanced(ranges: Sequence[FileRange], num_workers: int) -> list[FileRange]:
    """Return the same rows in the same order, in a multiple of `num_workers` ranges if possible.

    All workers are then busy to the end: three equal ranges take two workers as long as four. The largest
    file that is cut by bytes is cut more finely, unless there are so many ranges that an incomplete last
    round costs little.
    """
    files = [
        list(of_file)
        for _, of_file in groupby(ranges, key=lambda file_range: (file_range.table, file_range.uri))
    ]
    num_missing = -len(ranges) % max(num_workers, 1)  # none, while all of them are being replaced
    largest = max(files, key=_range_bytes, default=[])
    num_ranges = len(largest) + num_missing
    if (
        not num_missing
        or len(ranges) > _MAX_ROUNDS * num_workers
        or _range_bytes(largest) < num_ranges * MIN_BALANCED_BYTES
    ):
        return list(ranges)
    return [
        file_range
        for of_file in files
        for file_range in (_recut(of_file, num_ranges) if of_file is largest else of_file)
    ]


def grouped(ranges: Sequence[FileRange], num_workers: int, chunk_rows: int) -> list[list[FileRange]]:
    """Group neighbouring ranges of a table that one task reads: small files make few tasks and few chunks.

    A group has at most about `chunk_rows` rows and `MAX_GROUP_BYTES`, or one range. There are enough groups
    to keep all workers busy.
    """
    num_groups = _MAX_ROUNDS * max(num_workers, 1)
    max_rows = min(chunk_rows, sum(file_range.num_rows for file_range in ranges) // num_groups)
    max_bytes = min(MAX_GROUP_BYTES, sum(file_range.num_bytes for file_range in ranges) // num_groups)
    groups: list[list[FileRange]] = []
    num_rows = num_bytes = 0
    for file_range in ranges:
        num_rows, num_bytes = num_rows + file_range.num_rows, num_bytes + file_range.num_bytes
        if (
            groups
            and groups[-1][0].table == file_range.table
            and num_rows <= max_rows
            and num_bytes <= max_bytes
        ):
            groups[-1].append(file_range)
        else:
            groups.append([file_range])
            num_rows, num_bytes = file_range.num_rows, file_range.num_bytes
    return groups


def _range_bytes(of_file: Sequence[FileRange]) -> int:
    """Bytes of a file that is cut by bytes; else 0."""
    first = of_file[0]
    if format_of(first.uri, first.table, first.snapshot).unit != "byte":
        return 0
    return sum(file_range.cut[1] - file_range.cut[0] for file_range in of_file if file_range.cut is not None)


def _recut(of_file: Sequence[FileRange], num_ranges: int) -> list[FileRange]:
    first, num_bytes = of_file[0], _range_bytes(of_file)
    start = first.cut[0] if first.cut is not None else 0
    cuts = pairwise(start + num_bytes * number // num_ranges for number in range(num_ranges + 1))
    num_rows = sum(file_range.num_rows for file_range in of_file) // num_ranges
    return [
        replace(first, cut=cut, num_rows=num_rows, num_bytes=0 if number else first.num_bytes)
        for number, cut in enumerate(cuts)
    ]
