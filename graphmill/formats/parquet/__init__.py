"""Parquet files: opened, checked, and read in limited memory (`bounds`); a fast writer of `vectors`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds
from graphmill.storage import ChecksumManifest, Checksums


@contextmanager
def open_parquet(uri: str, manifest: ChecksumManifest | None = None) -> Iterator[pq.ParquetFile]:
    """Open the parquet file at `uri`; damage that a read in the block meets becomes a `FormatError`.

    With the `manifest` of its checksum, the whole file is read. Pages that have checksums are compared.
    """
    with storage.open_compared(uri, manifest) as source:
        try:
            # pre_buffer would keep all row groups that are read until the file is closed
            with pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True) as parquet:
                yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # pyarrow raises all for damage
            raise FormatError(f"{uri}: expected a parquet file, found damage or a part: {error}") from error


@contextmanager
def new_file(
    uri: str, schema: pa.Schema, checksums: Checksums | None, *, is_large: bool = False, **options: Any
) -> Iterator[pq.ParquetWriter]:
    """Open a new file for writing within the block; atomic. `options` are pyarrow's; pages have checksums."""
    with (
        storage.atomic_output(uri, is_large=is_large, checksums=checksums) as stream,
        pq.ParquetWriter(stream, schema, **{"write_page_checksum": True, **options}) as parquet,
    ):
        yield parquet


def files_at(uri: str, *, recursive: bool = False) -> list[str]:
    """The file at `uri`, whatever its name, or the parquet files in a folder, sorted: none unfinished."""
    listed = partial(storage.list_dir, recursive=recursive)
    files = [file.uri for file in storage.files_at(uri, listed_below=listed)[0]]
    return [file for file in files if file == uri or file.endswith(".parquet")]


def check_schema(parquet: pq.ParquetFile, expected: Mapping[str, tuple[pa.DataType, ...]], uri: str) -> None:
    """Refuse a file that lacks a column, or has a column of a type that is not accepted."""
    for column, accepted in expected.items():
        kind = column_type(parquet.schema_arrow, column, uri)
        if kind not in accepted:
            types = " or ".join(map(str, accepted))
            raise FormatError(f"{uri}: column {column!r}: expected {types}, found {kind or 'no such column'}")


def column_type(schema: pa.Schema, column: str, uri: str) -> Any:
    """The type of a column; None if there is no such column. Refuses two columns of one name."""
    if (count := schema.names.count(column)) > 1:
        raise FormatError(f"{uri}: expected one column {column!r}, found {count}")
    return schema.field(column).type if count else None


def are_vectors(kind: pa.DataType) -> bool:
    """Tell whether values of a type are lists of floats."""
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and types.is_floating(kind.value_type))


def iter_columns(
    parquet: pq.ParquetFile,
    uri: str,
    columns: Sequence[str],
    batch_rows: int,
    groups: Iterable[int] | None = None,
) -> Iterator[tuple[int, list[pa.Array]]]:
    """The number of the first row, and the columns, of batches of at most `batch_rows` rows.

    `groups` are consecutive row groups; None: all. Long strings make batches smaller.
    """
    wanted = list(range(parquet.num_row_groups) if groups is None else groups)
    row = sum(parquet.metadata.row_group(group).num_rows for group in range(wanted[0])) if wanted else 0
    batch_rows = bounds.batch_rows(parquet, uri, columns, batch_rows, groups=wanted)
    for batch in parquet.iter_batches(batch_rows, wanted, columns=columns):
        arrays = [batch.column(column) for column in columns]
        for column, array in zip(columns, arrays, strict=True):
            if array.null_count:
                null = row + pc.index(pc.is_null(array), True).as_py()
                raise FormatError(f"{uri}: row {null}: column {column!r}: expected no nulls, found one")
            array.validate(full=True)  # by default Arrow accepts any bytes as UTF-8
        yield row, arrays
        row += len(batch)
