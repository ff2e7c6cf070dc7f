"""What our two parquet formats share: opening one and checking its columns."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.storage import Manifest


@contextmanager
def open_parquet(uri: str, manifest: Manifest | None = None) -> Iterator[pq.ParquetFile]:
    """The parquet file at `uri`; damage met while reading it within the block becomes a `FormatError`.

    With the `manifest` of its checksum, all of it is read.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not parquet, or cut short, or damaged, or not what its checksum says.
    """
    with storage.open_compared(uri, manifest) as source:
        try:
            with pq.ParquetFile(source) as parquet:
                yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # pyarrow raises all for damage
            raise FormatError(f"{uri}: expected a parquet file, found damage or a part: {error}") from error


def check_schema(parquet: pq.ParquetFile, expected: Mapping[str, tuple[pa.DataType, ...]], uri: str) -> None:
    """Refuse a file that lacks a column, or has it under a type that is not among the accepted ones."""
    schema = parquet.schema_arrow
    for column, accepted in expected.items():
        found = schema.field(column).type if column in schema.names else "no such column"
        if found not in accepted:
            wanted = " or ".join(str(each) for each in accepted)
            raise FormatError(
                f"{uri}: column {column!r}: expected {wanted}, found {found or 'no such column'}"
            )
