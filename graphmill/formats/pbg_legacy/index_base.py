"""The index base of a legacy folder: numbers from 0 or from 1.

PBG numbered partitions, buckets and indices from 1 until February 2019, and from 0 since. For three weeks
PBG read both, and guessed from the names of the files. This module makes the same guess, but refuses names
that fit both bases or neither: an off-by-one makes every row wrong, and no row shows it.
"""

from collections.abc import Mapping, Set
from typing import Literal

from graphmill.errors import FormatError

IndexBase = Literal["auto", 0, 1]

_REMEDY = "set index_base to 0 or 1"


def of_partitions(
    numbers: Mapping[str, Set[int]],
    index_base: IndexBase,
    where: str,
    num_partitions: Mapping[str, int] | None = None,
) -> int:
    """Number of the first partition, from the partition numbers in the names of each type's files.

    `where` is the folder, for messages. `num_partitions` is of each type, where known; by default all files
    count.

    Raises:
        FormatError: the names fit neither base, or both, or lack one; or the types disagree.
    """
    counts = dict(num_partitions or {name: len(found) for name, found in numbers.items()})
    fits = {
        base
        for base in (0, 1)
        if all(numbers.get(name, set()) >= set(range(base, base + num)) for name, num in counts.items())
    }
    found = "; ".join(f"{name}: {', '.join(map(str, sorted(each)))}" for name, each in numbers.items())
    if index_base != "auto":
        if index_base not in fits:
            raise FormatError(f"{where}: partitions from {index_base} on are not complete; found {found}")
        return index_base
    if len(fits) != 1:
        fit = "fits numbering from 0 and from 1" if fits else "fits neither numbering from 0 nor from 1"
        raise FormatError(f"{where}: cannot tell the index base: {fit}; found partitions {found}; {_REMEDY}")
    return fits.pop()


def of_buckets(buckets: Set[tuple[int, int]], index_base: IndexBase, where: str) -> int:
    """Number of the first bucket on each side, and of the first entity and relation in the edge files.

    Raises:
        FormatError: neither the first bucket by 0 nor the one by 1 is there.
    """
    if index_base != "auto":
        return index_base
    if (0, 0) in buckets:
        return 0
    if (1, 1) in buckets:
        return 1
    raise FormatError(
        f"{where}: cannot tell the index base: expected edges_0_0.h5 or edges_1_1.h5, found neither "
        f"among {len(buckets)} buckets; {_REMEDY}"
    )
