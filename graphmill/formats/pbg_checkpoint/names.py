"""Names of the files of a checkpoint."""

import re

from graphmill import storage
from graphmill.formats._partition_numbers import count_partitions, numbers_by_type
from graphmill.vocab import Partition

VERSION_FILE = "checkpoint_version.txt"
CONFIG_FILE = "config.json"
STATS_FILE = "training_stats.json"
MODEL = "model"

_EMBEDDINGS_STEM = re.compile(r"^embeddings_(?P<type>.+)_(?P<partition>\d+)$")
_MANIFEST = re.compile(r"^checksums\.v(?P<version>\d+)\.xxh128$")
_VERSIONED = re.compile(r"^(?P<stem>embeddings_.+_\d+|model)\.v(?P<version>\d+)\.h5$")


def embeddings_uri(checkpoint_path: str, entity_type: str, partition: Partition, version: int) -> str:
    """Place of one partition's embeddings."""
    return storage.join(checkpoint_path, f"embeddings_{entity_type}_{partition}.v{version}.h5")


def model_uri(checkpoint_path: str, version: int) -> str:
    """Place of the parameters that belong to no entity."""
    return storage.join(checkpoint_path, f"model.v{version}.h5")


def manifest_of(checkpoint_path: str, version: int) -> storage.Manifest:
    """Place of the checksums of a version's files and of the configuration beside them."""
    uri = storage.join(checkpoint_path, f"checksums.v{version}.xxh128")
    return storage.Manifest(uri, "go back to a preserved epoch, or train again")


def manifest_versions(checkpoint_path: str) -> set[int]:
    """The versions that have checksums."""
    matches = (_MANIFEST.match(storage.name(entry.uri)) for entry in storage.list_dir(checkpoint_path))
    return {int(match["version"]) for match in matches if match}


def epoch_path(checkpoint_path: str, epoch: int) -> str:
    """Folder of the preserved version of an epoch, itself a checkpoint."""
    return storage.join(checkpoint_path, f"epoch_{epoch}")


def version_in(name: str) -> int:
    """The version of a file of that name; -1 where the name is none of a version's files."""
    match = _VERSIONED.match(name)
    return int(match["version"]) if match else -1


def versions_of(checkpoint_path: str) -> dict[int, set[str]]:
    """The versions that have files, with the stems of their names."""
    versions: dict[int, set[str]] = {}
    for entry in storage.list_dir(checkpoint_path):
        if (match := _VERSIONED.match(storage.name(entry.uri))) and not entry.is_dir:
            versions.setdefault(int(match["version"]), set()).add(match["stem"])
    return versions


def num_partitions(checkpoint_path: str, version: int) -> dict[str, int]:
    """Number of partitions of each entity type that the version has embeddings of.

    Raises:
        FormatError: the files of a type are not numbered from 0 without a gap.
    """
    numbers = numbers_by_type(versions_of(checkpoint_path).get(version, set()), _EMBEDDINGS_STEM)
    return count_partitions(numbers, lambda name, part: embeddings_uri(checkpoint_path, name, part, version))
