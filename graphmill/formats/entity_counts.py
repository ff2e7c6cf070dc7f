"""Counts of entities and relations in PyTorch-BigGraph's input folder, and optionally their names; partition
numbers in the names of files.

    entities/
        entity_count_{type}_{partition}.txt     one decimal integer: rows of the partition
        entity_names_{type}_{partition}.json    optional: JSON list of raw ids in row order
        dynamic_rel_count.txt                   one decimal integer, with dynamic relations only
        dynamic_rel_names.json                  optional: JSON list of relation names

Source: docs/formats/pbg_v1.md.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.storage import Checksums

RELATION_COUNT = "dynamic_rel_count.txt"
RELATION_NAMES = "dynamic_rel_names.json"

_COUNT_NAME = re.compile(r"^entity_count_(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.txt$")
_DECIMAL = re.compile(rb"\s*([+-]?[0-9]{1,18})\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_FLUSH_CHARS = 1 << 20


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


def count_uri(entity_path: str, entity_type: str, partition: int) -> str:
    """Place of the number of rows of one partition."""
    return storage.join(entity_path, f"entity_count_{entity_type}_{partition}.txt")


def names_uri(entity_path: str, entity_type: str, partition: int) -> str:
    """Place of the raw ids of one partition in the format of PBG's own tools."""
    return storage.join(entity_path, f"entity_names_{entity_type}_{partition}.json")


def write_count(
    entity_path: str, entity_type: str, partition: int, count: int, checksums: Checksums | None = None
) -> None:
    """Write the number of rows of a partition; add the file's checksum to `checksums`."""
    storage.write_text(count_uri(entity_path, entity_type, partition), f"{count}\n", checksums)


def read_count(entity_path: str, entity_type: str, partition: int) -> int:
    """Rows of the partition."""
    return _read_integer(entity_path, count_uri(entity_path, entity_type, partition))


def read_counts(entity_path: str, num_partitions: Mapping[str, int]) -> dict[str, list[int]]:
    """Rows of every partition of every type; `num_partitions` has the number of partitions of each type."""
    return {
        entity_type: [read_count(entity_path, entity_type, partition) for partition in range(num)]
        for entity_type, num in num_partitions.items()
    }


def list_counts(entity_path: str) -> dict[str, list[int]]:
    """Rows of every partition of every type, from all counts in the folder."""
    names = (storage.name(entry.uri) for entry in storage.list_dir(entity_path))
    if not (numbers := numbers_by_type(names, _COUNT_NAME)):
        raise FormatError(f"{entity_path}: expected entity_count_*.txt files, found none")
    return read_counts(entity_path, count_partitions(numbers, partial(count_uri, entity_path)))


def write_relation_count(entity_path: str, count: int, checksums: Checksums | None = None) -> None:
    """Write the number of dynamic relations; add the file's checksum to `checksums`."""
    storage.write_text(storage.join(entity_path, RELATION_COUNT), f"{count}\n", checksums)


def read_relation_count(entity_path: str) -> int:
    """Number of dynamic relations."""
    return _read_integer(entity_path, storage.join(entity_path, RELATION_COUNT))


def write_relation_names(entity_path: str, names: Iterable[str], checksums: Checksums | None = None) -> None:
    """Write the names of the dynamic relations by number; add the file's checksum to `checksums`."""
    _write_strings(storage.join(entity_path, RELATION_NAMES), names, checksums)


def read_relation_names(entity_path: str) -> list[str] | None:
    """Names of the dynamic relations; None without such a file."""
    uri = storage.join(entity_path, RELATION_NAMES)
    return _read_strings(entity_path, uri) if storage.exists(uri) else None


def write_entity_names(
    entity_path: str,
    entity_type: str,
    partition: int,
    names: Iterable[str],
    checksums: Checksums | None = None,
) -> None:
    """Write raw ids for PBG's own tools in at most a megabyte of memory; add the checksum to `checksums`."""
    _write_strings(names_uri(entity_path, entity_type, partition), names, checksums)


def read_entity_names(entity_path: str, entity_type: str, partition: int) -> list[str]:
    """Raw ids in row order. JSON cannot be read in parts: the ids of the whole partition are in memory."""
    return _read_strings(entity_path, names_uri(entity_path, entity_type, partition))


def _read_integer(entity_path: str, uri: str) -> int:
    content = storage.read_compared(uri, storage.manifest_of(entity_path))
    match = _DECIMAL.fullmatch(content)
    if match is None or int(match[1]) < 0:
        shown = content[:40].decode(errors="backslashreplace")
        raise FormatError(f"{uri}: expected one integer that is not negative, found {shown!r}")
    return int(match[1])


def _write_strings(uri: str, strings: Iterable[str], checksums: Checksums | None) -> None:
    # The same bytes as json.dump(list(strings)).
    with storage.atomic_output(uri, checksums=checksums) as stream:
        pending, num_pending_chars, separator = ["["], 1, ""
        for string in strings:
            pending.append(separator + json.dumps(string))
            num_pending_chars += len(pending[-1])
            separator = ", "
            if num_pending_chars > _FLUSH_CHARS:
                stream.write("".join(pending).encode())
                pending, num_pending_chars = [], 0
        stream.write(("".join(pending) + "]").encode())


def _read_strings(entity_path: str, uri: str) -> list[str]:
    content = storage.read_compared(uri, storage.manifest_of(entity_path), sys.maxsize)
    strings: list[Any] = storage.json_in(content, uri, list)
    for row, string in enumerate(strings):  # JSON can hold half a surrogate pair, which UTF-8 cannot encode
        if not isinstance(string, str) or (not string.isascii() and _SURROGATE.search(string)):
            raise FormatError(f"{uri}: expected strings only, found {string!r} at position {row}")
    return strings
