"""Text that users give, as tables of etl or files of ids, pairs and labels: one reader and rule of quotes."""

from collections.abc import Callable, Iterable, Iterator
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


def cut(
    tables: Iterable[pa.Table],
    block_rows: int,
    block_bytes: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[pa.Table]:
    """Cut into blocks of `block_rows` rows.

    The last block, one that reaches `block_bytes`, and one that `is_over` at the end of a table have fewer.
    """
    pending: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        while table.num_rows:
            head = table.slice(0, block_rows - num_rows)
            table = table.slice(head.num_rows)
            pending.append(head)
            num_rows += head.num_rows
            num_bytes += head.nbytes
            if num_rows == block_rows or (block_bytes is not None and num_bytes >= block_bytes):
                yield pa.concat_tables(pending)
                pending, num_rows, num_bytes = [], 0, 0
        if is_over():
            yield pa.concat_tables([*pending, table])  # of the table nothing is left but its columns
            pending, num_rows, num_bytes = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)
