"""Names of the files of a checkpoint; its text files: version, configuration, statistics of each bucket."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from graphmill import storage
from graphmill.checkpoints.states import checked_config
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.entity_counts import count_partitions, numbers_by_type
from graphmill.storage import Checksums, checksums
from graphmill.vocab import Partition

VERSION_FILE = "checkpoint_version.txt"
CONFIG_FILE = "config.json"
STATS_FILE = "training_stats.json"
MODEL = "model"

_EMBEDDINGS_STEM = re.compile(r"^embeddings_(?P<type>.+)_(?P<partition>\d+)$")
_MANIFEST = re.compile(r"^checksums\.v(?P<version>\d+)\.xxh128$")
_PRESERVED = re.compile(r"^epoch_[0-9]+$")
_VERSIONED = re.compile(r"^(?P<stem>embeddings_.+_\d+|model)\.v(?P<version>\d+)\.h5$")


def embeddings_uri(checkpoint_path: str, entity_type: str, partition: Partition, version: int) -> str:
    """Place of one partition's embeddings."""
    return storage.join(checkpoint_path, f"embeddings_{entity_type}_{partition}.v{version}.h5")


def model_uri(checkpoint_path: str, version: int) -> str:
    """Place of the parameters that belong to no entity."""
    return storage.join(checkpoint_path, f"model.v{version}.h5")


def manifest_of(checkpoint_path: str, version: int) -> storage.ChecksumManifest:
    """Place of the checksums of a version's files and of the configuration beside them."""
    uri = storage.join(checkpoint_path, f"checksums.v{version}.xxh128")
    return storage.ChecksumManifest(uri, "go back to a preserved epoch, or train again")


def version_checksum(checkpoint_path: str, version: int) -> str | None:
    """The checksum of the files of a version, its checksums taken together; None where it has none."""
    checksums_by_name = storage.read_checksums(manifest_of(checkpoint_path, version).uri)
    own = {name: checksum for name, checksum in checksums_by_name.items() if version_in(name) == version}
    return checksums.of_bytes(json.dumps(own, sort_keys=True).encode()) if own else None


def manifest_versions(checkpoint_path: str) -> set[int]:
    """The versions that have checksums."""
    matches = (_MANIFEST.match(storage.name(entry.uri)) for entry in storage.list_dir(checkpoint_path))
    return {int(match["version"]) for match in matches if match}


def epoch_path(checkpoint_path: str, epoch: int) -> str:
    """Folder of the preserved version of an epoch, itself a checkpoint."""
    return storage.join(checkpoint_path, f"epoch_{epoch}")


def complete_versions(checkpoint_path: str) -> dict[int, str]:
    """The folder of each version that an epoch preserves, or that has all files a version has."""
    folders = [entry.uri for entry in storage.list_dir(checkpoint_path) if entry.is_dir]
    preserved = {read_version(uri): uri for uri in folders if _PRESERVED.match(storage.name(uri))}
    versions = versions_of(checkpoint_path)
    needed = versions.get(read_version(checkpoint_path), set()) | {MODEL}
    whole = (version for version, stems in versions.items() if version and stems >= needed)
    return dict.fromkeys(whole, checkpoint_path) | preserved


def version_in(name: str) -> int:
    """The version of a file of that name; -1 where the name is none of a version's files."""
    match = _VERSIONED.match(name)
    return int(match["version"]) if match else -1


def versions_of(checkpoint_path: str) -> dict[int, set[str]]:
    """Stems of the names of the files of each version."""
    versions: dict[int, set[str]] = {}
    for entry in storage.list_dir(checkpoint_path):
        if (match := _VERSIONED.match(storage.name(entry.uri))) and not entry.is_dir:
            versions.setdefault(int(match["version"]), set()).add(match["stem"])
    return versions


def num_partitions(checkpoint_path: str, version: int) -> dict[str, int]:
    """Number of partitions of each entity type that the version has embeddings of."""
    numbers = numbers_by_type(versions_of(checkpoint_path).get(version, set()), _EMBEDDINGS_STEM)
    return count_partitions(numbers, lambda name, part: embeddings_uri(checkpoint_path, name, part, version))


def read_version(checkpoint_path: str) -> int:
    """The committed version; 0 where there is no checkpoint."""
    uri = storage.join(checkpoint_path, VERSION_FILE)
    try:
        text = storage.read_text(uri).strip()
    except NotFoundError:
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise FormatError(
            f"{uri}: expected the number of a version, found {text[:40]!r}; write the version of the "
            "files beside it that are complete, or delete the checkpoint to start from scratch"
        )
    return int(text)


def write_config(checkpoint_path: str, config: Mapping[str, Any]) -> Checksums:
    """Write config.json with PBG's keys alone; return its checksum, which the committed version gets too."""
    manifest_uri = manifest_of(checkpoint_path, read_version(checkpoint_path)).uri
    known = storage.read_checksums(manifest_uri)
    if known.pop(CONFIG_FILE, None):  # a kill in between leaves it without a checksum
        storage.write_checksums(manifest_uri, known)
    written: Checksums = {}
    storage.write_text(storage.join(checkpoint_path, CONFIG_FILE), json.dumps(config, indent=4), written)
    if known:
        storage.write_checksums(manifest_uri, known | written)
    return written


def read_config(checkpoint_path: str) -> dict[str, Any]:
    """PBG's configuration that the checkpoint was trained with."""
    uri = storage.join(checkpoint_path, CONFIG_FILE)
    manifest = manifest_of(checkpoint_path, read_version(checkpoint_path))
    return checked_config(storage.json_in(storage.read_compared(uri, manifest), uri), uri)


def append_stats(checkpoint_path: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add JSON lines; a line replaces the line of the same bucket and iteration from an interrupted run."""
    uri, added = storage.join(checkpoint_path, STATS_FILE), [dict(line) for line in lines]
    again = {visit for visit in map(_bucket_visit, added) if visit is not None}
    epochs = {f'"epoch_idx": {visit[0]}'.encode() for visit in again}

    def is_replaced(line: bytes) -> bool:  # lines of other epochs are not parsed
        of_epoch = any(epoch in line for epoch in epochs)
        return of_epoch and _bucket_visit(storage.json_in(line, uri)) in again

    kept = [line for line in _stored_lines(uri) if not is_replaced(line)]
    with storage.atomic_output(uri) as stream:
        stream.writelines(line + b"\n" for line in [*kept, *(json.dumps(line).encode() for line in added)])


def read_stats(checkpoint_path: str) -> list[dict[str, Any]]:
    """The lines of training_stats.json; none where there is no such file."""
    uri = storage.join(checkpoint_path, STATS_FILE)
    lines = enumerate(_stored_lines(uri), 1)
    return [storage.json_in(line, f"{uri}: line {number}") for number, line in lines if line]


def _stored_lines(uri: str) -> list[bytes]:
    """All lines, as many as training takes, which `read_text` would not."""
    return storage.read_bytes(uri).splitlines() if storage.exists(uri) else []


def _bucket_visit(line: Mapping[str, Any]) -> tuple[Any, ...] | None:
    names = ("epoch_idx", "edge_path_idx", "edge_chunk_idx", "lhs_partition", "rhs_partition")
    return tuple(line[name] for name in names) if all(name in line for name in names) else None
