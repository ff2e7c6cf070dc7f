"""As many sources as keep all workers busy to the end: three for two workers take as long as four."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from etl.tables.files import format_of
from etl.tables.sources import Source

MIN_RANGE_BYTES = 16 << 20
_MAX_ROUNDS = 4


def balanced(sources: Sequence[Source], num_workers: int) -> list[Source]:
    """The same rows in the same order, in a multiple of `num_workers` sources if that is easily done.

    The largest file whose sources are ranges of bytes is cut into more of them; unless there are so many
    sources that a last incomplete round costs little.
    """
    files = [list(of_file) for _, of_file in groupby(sources, key=lambda each: (each.table, each.uri))]
    num_missing = -len(sources) % max(num_workers, 1)  # none, while all of them are being replaced
    largest = max(files, key=_range_bytes, default=[])
    num_ranges = len(largest) + num_missing
    if (
        not num_missing
        or len(sources) > _MAX_ROUNDS * num_workers
        or _range_bytes(largest) < num_ranges * MIN_RANGE_BYTES
    ):
        return list(sources)
    return [
        each for of_file in files for each in (_recut(of_file, num_ranges) if of_file is largest else of_file)
    ]


def _range_bytes(of_file: Sequence[Source]) -> int:
    """Bytes of a file whose sources are ranges of them; else 0."""
    if not of_file or format_of(of_file[0].uri, of_file[0].table) not in ("csv", "json"):
        return 0
    return sum(each.cut[1] - each.cut[0] for each in of_file if each.cut is not None)


def _recut(of_file: Sequence[Source], num_ranges: int) -> list[Source]:
    first, num_bytes = of_file[0], _range_bytes(of_file)
    start = first.cut[0] if first.cut is not None else 0
    cuts = pairwise(start + num_bytes * number // num_ranges for number in range(num_ranges + 1))
    num_rows = sum(each.num_rows for each in of_file) // num_ranges
    return [
        replace(first, cut=cut, num_rows=num_rows, num_bytes=0 if number else first.num_bytes)
        for number, cut in enumerate(cuts)
    ]
