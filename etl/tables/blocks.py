"""Sizes of blocks of rows that fit the processor's cache, and items cut into ranges that fit a task."""

from collections.abc import Sequence

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 64 << 20  # a block ends here too, so that long ids do not make it large


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
