"""Partition numbers in the names of files."""

import re
from collections.abc import Callable, Iterable, Mapping, Set

from graphmill.errors import FormatError


def numbers_by_type(names: Iterable[str], pattern: re.Pattern[str]) -> dict[str, set[int]]:
    """Partition numbers of each entity type, sorted by type; `pattern` has the groups type and partition."""
    numbers: dict[str, set[int]] = {}
    for match in filter(None, map(pattern.match, names)):
        numbers.setdefault(match["type"], set()).add(int(match["partition"]))
    return {entity_type: numbers[entity_type] for entity_type in sorted(numbers)}


def count_partitions(numbers: Mapping[str, Set[int]], uri_of: Callable[[str, int], str]) -> dict[str, int]:
    """Number of partitions of each entity type; `uri_of` is the place of a partition's file, for messages."""
    for entity_type, own in numbers.items():
        missing = next(number for number in range(len(own) + 1) if number not in own)  # a name has any number
        if missing < len(own):
            uri = uri_of(entity_type, missing)
            raise FormatError(f"{uri}: expected the file of this partition, found no such file")
    return {entity_type: len(own) for entity_type, own in numbers.items()}
