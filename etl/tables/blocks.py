"""Cuts tables into blocks that fit the processor's cache, and items into ranges that fit a task."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 64 << 20  # a block ends here too, so that long ids do not make it large


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


def ranges_within(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut items into ranges of adjacent items with sizes of at most `limit` in all, or of one larger item."""
    ranges: list[range] = []
    used = 0
    for number, size in enumerate(sizes):
        if ranges and used + size <= limit:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
            used = 0
        used += size
    return ranges
