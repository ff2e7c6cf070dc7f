"""Text that users give, as tables of etl or files of ids, pairs and labels: one reader and rule of quotes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from graphmill.errors import RawTableError, StorageError
from graphmill.storage.filesystems import explained


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn pyarrow's errors about a raw table into a `RawTableError`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network, not the table
            raise StorageError(f"{uri}: cannot read: {error.strerror}") from error
        raise RawTableError(f"{uri}: cannot be read as a table: {error}") from error
    except RuntimeError:
        with explained("read", uri):  # hdfs-native raises errors without a type of their own
            raise
