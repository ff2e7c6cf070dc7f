"""The file ranges that the files of raw tables are cut into; one task reads one range.

A range is a run of row groups of a parquet file or of stripes of an ORC file, or a range of bytes of a text
file. A file is one range if the places of its rows are unknown: text with quotes, whose fields may hold
newlines, or compressed text.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import pyarrow as pa

from etl.config import FilesConfig, Table
from etl.tables import nested
from etl.tables.files import path_values
from etl.tables.formats import FileRange, Head, format_of
from graphmill import storage
from graphmill.errors import RawTableError

MIN_BALANCED_BYTES = 16 << 20
MAX_GROUP_BYTES = 64 << 20
_MAX_ROUNDS = 4


def ranges_of_files(files: Sequence[tuple[str, Table, str]], chunk_rows: int) -> list[FileRange]:
    """Find the ranges of files, each given as label, table and URI; see `find_ranges`."""
    return [each for label, table, uri in files for each in find_ranges(label, table, uri, chunk_rows)]


def find_ranges(label: str, table: Table, uri: str, chunk_rows: int) -> list[FileRange]:
    """Find the columns of a file, and cut the file into ranges; `label` names the table in figures.

    Raises:
        RawTableError: the file cannot be read, or lacks a column.
    """
    head = format_of(uri, table).read_head(uri, table, chunk_rows)
    if not head.cuts:
        return []
    found, values = _columns(table, head, uri)
    types = {
        field: nested.type_at(head.types[path[0]], path[1:]) for field, path in found.items() if head.types
    }
    integers = tuple(
        f"{label}.{field}" for field, kind in types.items() if field != "weight" and pa.types.is_integer(kind)
    )
    if pa.types.is_integer(types.get("weight", pa.null())):
        types["weight"] = pa.float64()  # later rows of JSON may have fractions
    status = storage.status(uri)
    num_bytes = status.size_bytes if status else 0
    whole = FileRange(
        table,
        uri,
        columns={field: ".".join(path) for field, path in found.items()},
        nested={field: path for field, path in found.items() if len(path) > 1},
        num_columns=len(head.names),
        values=values,
        types=nested.joined((found[field], kind) for field, kind in types.items()),
        integer_columns=integers,
    )
    return [
        replace(
            whole,
            cut=cut,
            first_row=first_row,
            num_head_rows=head.num_head_rows if cut is None else 0,
            num_rows=num_rows,
            num_bytes=0 if number else num_bytes,
        )
        for number, (first_row, num_rows, cut) in enumerate(head.cuts)
    ]


def _columns(
    table: FilesConfig, head: Head, uri: str
) -> tuple[dict[str, nested.Path], dict[str, str | None]]:
    """Find the column of each field, as the reader names it, and the values of fields that the path gives.

    A column may be a field in a struct; a column that really has the dotted name comes first.

    Raises:
        RawTableError: there is no such column, or it cannot be told from another.
    """
    reader_names = head.reader_names or head.names
    found: dict[str, nested.Path] = {}
    values: dict[str, str | None] = {}
    given = path_values(uri)
    for field, column in table.columns().items():
        at = [number for number, name in enumerate(head.names) if column in (number, name)]
        path = nested.find(head.types, column) if isinstance(column, str) else None
        if len(at) == 1:
            found[field] = (reader_names[at[0]],)
        elif path and not at:
            found[field] = path
        elif isinstance(column, str) and not at and column in given:
            values[field] = given[column]
        else:
            known = list(nested.known(head.names, head.types))
            here = "two columns of that name; name it by its number" if at else f"columns {known}"
            raise RawTableError(f"{uri}: expected a column {column!r} ({field}), found {here}")
    twice = next((path[0] for path in found.values() if reader_names.count(path[0]) > 1), None)
    if twice is not None:
        raise RawTableError(f"{uri}: two columns are named {twice!r}, and cannot be told apart; rename one")
    if len(set(found.values())) < len(found):
        raise RawTableError(f"{uri}: two parts of an edge are the same column: {table.columns()}")
    if not found:
        raise RawTableError(f"{uri}: all columns come from the file's path; no row differs from another")
    return found, values


def balanced(ranges: Sequence[FileRange], num_workers: int) -> list[FileRange]:
    """Return the same rows in the same order, in a multiple of `num_workers` ranges if possible.

    All workers are then busy to the end: three equal ranges take two workers as long as four. The largest
    file that is cut by bytes is cut more finely, unless there are so many ranges that an incomplete last
    round costs little.
    """
    files = [list(of_file) for _, of_file in groupby(ranges, key=lambda each: (each.table, each.uri))]
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
        each for of_file in files for each in (_recut(of_file, num_ranges) if of_file is largest else of_file)
    ]


def grouped(ranges: Sequence[FileRange], num_workers: int, chunk_rows: int) -> list[list[FileRange]]:
    """Group neighbouring ranges of a table that one task reads: small files make few tasks and few chunks.

    A group has at most about `chunk_rows` rows and `MAX_GROUP_BYTES`, or one range. There are enough groups
    to keep all workers busy.
    """
    num_groups = _MAX_ROUNDS * max(num_workers, 1)
    max_rows = min(chunk_rows, sum(each.num_rows for each in ranges) // num_groups)
    max_bytes = min(MAX_GROUP_BYTES, sum(each.num_bytes for each in ranges) // num_groups)
    groups: list[list[FileRange]] = []
    num_rows = num_bytes = 0
    for each in ranges:
        num_rows, num_bytes = num_rows + each.num_rows, num_bytes + each.num_bytes
        if groups and groups[-1][0].table == each.table and num_rows <= max_rows and num_bytes <= max_bytes:
            groups[-1].append(each)
        else:
            groups.append([each])
            num_rows, num_bytes = each.num_rows, each.num_bytes
    return groups


def _range_bytes(of_file: Sequence[FileRange]) -> int:
    """Bytes of a file that is cut by bytes; else 0."""
    if not of_file or format_of(of_file[0].uri, of_file[0].table).unit != "byte":
        return 0
    return sum(each.cut[1] - each.cut[0] for each in of_file if each.cut is not None)


def _recut(of_file: Sequence[FileRange], num_ranges: int) -> list[FileRange]:
    first, num_bytes = of_file[0], _range_bytes(of_file)
    start = first.cut[0] if first.cut is not None else 0
    cuts = pairwise(start + num_bytes * number // num_ranges for number in range(num_ranges + 1))
    num_rows = sum(each.num_rows for each in of_file) // num_ranges
    return [
        replace(first, cut=cut, num_rows=num_rows, num_bytes=0 if number else first.num_bytes)
        for number, cut in enumerate(cuts)
    ]
