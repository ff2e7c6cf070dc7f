"""The index base of a legacy folder: numbers from 0 or from 1.

PBG numbered partitions, buckets and indices from 1 until February 2019, and from 0 since. For three weeks
PBG read both, and guessed from the names of the files. This module makes the same guess, but refuses names
that fit both bases or neither: an off-by-one makes every row wrong, and no row shows it.
"""

from collections.abc import Callable, Mapping, Set
from itertools import islice
from typing import Literal

from graphmill.errors import FormatError

IndexBase = Literal["auto", 0, 1]

_SHOWN = 3
_REMEDY = "set index_base to 0 or 1"


def of_partitions(
    numbers: Mapping[str, Set[int]],
    index_base: IndexBase,
    where: str,
    file_of: Callable[[str, int], str],
    num_partitions: Mapping[str, int] | None = None,
) -> int:
    """Number of the first partition, from the partition numbers in the names of each type's files.

    `where` is the folder, for messages, and `file_of` the file of a type's number. `num_partitions` is of
    each type, where known; by default all files count.

    Raises:
        FormatError: a partition is lost; the names fit neither base, or both; or the types disagree.
    """
    counts = dict(num_partitions or {name: len(files) for name, files in numbers.items()})
    fits = {
        base
        for base in (0, 1)
        if all(_has_all(numbers.get(name, set()), range(base, base + num)) for name, num in counts.items())
    }
    if not fits & ({0, 1} if index_base == "auto" else {index_base}):
        _check_none_is_lost(numbers, index_base, file_of, num_partitions)
    shown = "; ".join(f"{name}: {', '.join(map(str, sorted(number)))}" for name, number in numbers.items())
    if index_base != "auto":
        if index_base not in fits:
            raise FormatError(f"{where}: partitions from {index_base} on are not complete; found {shown}")
        return index_base
    if len(fits) != 1:
        fit = "fits numbering from 0 and from 1" if fits else "fits neither numbering from 0 nor from 1"
        raise FormatError(f"{where}: cannot tell the index base: {fit}; found partitions {shown}; {_REMEDY}")
    return fits.pop()


def _check_none_is_lost(
    numbers: Mapping[str, Set[int]],
    index_base: IndexBase,
    file_of: Callable[[str, int], str],
    num_partitions: Mapping[str, int] | None,
) -> None:
    """Refuse names that lack a partition, by each base that they may have."""
    lost: list[str] = []
    for base in (0, 1) if index_base == "auto" else (index_base,):
        files = (
            f"{file_of(name, number)} (partition {number - base + 1} of {len(wanted)} of {name!r})"
            for name, wanted in _wanted(numbers, base, num_partitions).items()
            for number in wanted
            if number not in numbers.get(name, set())
        )
        lost += filter(None, [", ".join(islice(files, _SHOWN))])
    if lost:
        raise FormatError(
            f"{', or '.join(lost)}: this partition is lost, there is no such file; copy it from where the "
            "others came from, or use a version or a copy that is complete"
        )


def _has_all(known: Set[int], wanted: range) -> bool:
    return len(known) >= len(wanted) and all(number in known for number in wanted)


def _wanted(
    numbers: Mapping[str, Set[int]], base: int, num_partitions: Mapping[str, int] | None
) -> dict[str, range]:
    """Numbers that each type should have by this base; none if a number shows that the base is another one.

    Without `num_partitions`, only gaps show that a partition is lost.
    """
    if num_partitions is None:
        is_other = 1 - base in map(min, numbers.values())
        return {} if is_other else {name: range(base, max(files) + 1) for name, files in numbers.items()}
    wanted = {name: range(base, base + num) for name, num in num_partitions.items()}
    has_others = any(number not in wanted[name] for name in wanted for number in numbers.get(name, ()))
    return {} if has_others else wanted


def of_buckets(buckets: Set[tuple[int, int]], index_base: IndexBase, where: str) -> int:
    """Number of the first bucket on each side, and of the first entity and relation in the edge files."""
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
