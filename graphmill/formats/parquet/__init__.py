"""Parquet files: opening and checking, with limits of memory (`bounds`); a fast writer of `vectors`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.storage import Manifest


@contextmanager
def open_parquet(uri: str, manifest: Manifest | None = None) -> Iterator[pq.ParquetFile]:
    """Open the parquet file at `uri`; damage that a read in the block meets becomes a `FormatError`.

    With the `manifest` of its checksum, the whole file is read.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not parquet, is cut short or damaged, or has another checksum.
    """
    with storage.open_compared(uri, manifest) as source:
        try:
            with pq.ParquetFile(source) as parquet:
                yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # pyarrow raises all for damage
            raise FormatError(f"{uri}: expected a parquet file, found damage or a part: {error}") from error


def check_schema(parquet: pq.ParquetFile, expected: Mapping[str, tuple[pa.DataType, ...]], uri: str) -> None:
    """Refuse a file that lacks a column, or has a column of a type that is not accepted."""
    schema = parquet.schema_arrow
    for column, accepted in expected.items():
        found = schema.field(column).type if column in schema.names else "no such column"
        if found not in accepted:
            wanted = " or ".join(map(str, accepted))
            raise FormatError(f"{uri}: column {column!r}: expected {wanted}, found {found}")
