"""Cuts a stream of tables into blocks, so small that they stay in the processor's cache."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 64 << 20  # a block ends here too, so that long ids do not make it large


def cut(tables: Iterable[pa.Table], block_rows: int, block_bytes: int | None = None) -> Iterator[pa.Table]:
    """Cut into blocks of `block_rows` rows; the last block, and one that reaches `block_bytes`, has fewer."""
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
    if pending:
        yield pa.concat_tables(pending)
