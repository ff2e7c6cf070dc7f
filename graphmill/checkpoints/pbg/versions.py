"""Versions of a checkpoint: names of their files, the text files beside them (version, configuration and
statistics), commit, keep, restore, move aside, clean up.

PBG preserves an epoch as a folder of links; we use copies or hard links.

    checkpoint_path/
      embeddings_user_0.v2.h5
      epoch_2/embeddings_user_0.v2.h5 -> /where/it/was/checkpoint/embeddings_user_0.v2.h5

The name of the target identifies the file: in a checkpoint that was moved, the link is broken, and the
file of that name beside the folder is still the right one.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
_COPY_BYTES = 8 << 20

log = logging.getLogger("graphmill")


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


def commit(
    checkpoint_path: str,
    version: int,
    *,
    preserve_epoch: int | None,
    checksums: Mapping[str, str] | None = None,
) -> None:
    """Commit `version`, whose files are all written, and delete the older versions.

    `checksums` has those of its files, by the URI under which each was written.
    The copy for `preserve_epoch` is made first: after a kill, the copy is made again and never lost. Another
    version that has been preserved under that number is moved aside.
    """
    committed = read_version(checkpoint_path)
    versions = versions_of(checkpoint_path)
    lacking = (versions.get(committed, set()) | {MODEL}) - versions.get(version, set())
    if lacking:
        raise FormatError(
            f"{checkpoint_path}: version {version} cannot be committed: it lacks {', '.join(sorted(lacking))}"
        )
    _write_checksums(checkpoint_path, version, checksums or {})
    if preserve_epoch is not None:
        kept_path = epoch_path(checkpoint_path, preserve_epoch)
        if storage.exists(kept_path) and not _has_same(checkpoint_path, version, kept_path):
            aside = storage.move_aside(kept_path)
            log.info("checkpoint: another epoch was preserved as %s: it is moved to %s", kept_path, aside)
        if not storage.exists(kept_path):  # else a run that was killed has made it
            keep(checkpoint_path, version, storage.name(kept_path))
    storage.write_text(storage.join(checkpoint_path, VERSION_FILE), f"{version}\n")
    _delete(checkpoint_path, lambda number: number < version)


def keep(checkpoint_path: str, version: int, name: str) -> None:
    """Copy one version to the folder `name` in the checkpoint, which becomes a checkpoint itself."""
    with storage.atomic_directory(storage.join(checkpoint_path, name)) as temporary:
        beside = storage.name(manifest_of(checkpoint_path, version).uri), CONFIG_FILE
        for entry in storage.list_dir(checkpoint_path):
            file = storage.name(entry.uri)
            if file in beside or version_in(file) == version:
                _link_or_copy(entry.uri, storage.join(temporary, file))
        storage.write_text(storage.join(temporary, VERSION_FILE), f"{version}\n")


def restore(checkpoint_path: str, name: str) -> None:
    """Commit the version of the folder `name` in the checkpoint and delete the others; may be repeated."""
    source = storage.join(checkpoint_path, name)
    version = read_version(source)
    stems = versions_of(source).get(version, set())
    if not version or MODEL not in stems:
        raise FormatError(f"{source}: expected the version to go back to, found none")
    for stem in sorted(stems):
        kept_uri, uri = (storage.join(path, f"{stem}.v{version}.h5") for path in (source, checkpoint_path))
        if not storage.exists(uri):
            _link_or_copy(kept_uri, uri)
    # The configuration of the checkpoint stays; it may be newer than the version.
    beside = storage.read_checksums(manifest_of(checkpoint_path, read_version(checkpoint_path)).uri)
    kept = storage.read_checksums(manifest_of(source, version).uri)
    kept.pop(CONFIG_FILE, None)
    config = {name: checksum for name, checksum in beside.items() if name == CONFIG_FILE}
    _write_checksums(checkpoint_path, version, kept and kept | config)
    storage.write_text(storage.join(checkpoint_path, VERSION_FILE), f"{version}\n")
    _delete(checkpoint_path, lambda number: number != version)


def delete_uncommitted(checkpoint_path: str) -> None:
    """Delete what a kill left: a part of the next version, older versions, temporary files.

    Later versions stay: no kill leaves them, so a checkpoint that lost its version file is not touched.
    Training will overwrite them, so preserved epochs get copies in the place of links to them.
    """
    committed = read_version(checkpoint_path)
    for file, links in _links_of(checkpoint_path).items():
        if version_in(file) > committed:
            _make_own(checkpoint_path, links)
    _delete(checkpoint_path, lambda number: number < committed or number == committed + 1)
    storage.sweep(checkpoint_path)


def move_aside(checkpoint_path: str) -> str:
    """Rename the folder for good, with complete preserved epochs; returns the new name."""
    for links in _links_of(checkpoint_path).values():
        _make_own(checkpoint_path, links)
    return storage.move_aside(checkpoint_path)


def _has_same(checkpoint_path: str, version: int, other_path: str) -> bool:
    """Tell whether a folder holds exactly that version, by the checksums of its files."""
    stems = versions_of(checkpoint_path).get(version, set())
    if read_version(other_path) != version or versions_of(other_path) != {version: stems}:
        return False
    files = [f"{stem}.v{version}.h5" for stem in stems]
    return all(
        checksums.of_file(storage.join(checkpoint_path, file))
        == checksums.of_file(storage.join(other_path, file))
        for file in files
    )


def _write_checksums(checkpoint_path: str, version: int, checksums: Mapping[str, str]) -> None:
    """Write the checksums of a version's files, or delete the old ones if there are none."""
    manifest_uri = manifest_of(checkpoint_path, version).uri
    by_name = {storage.name(uri): checksum for uri, checksum in checksums.items()}
    own = {
        name: checksum
        for name, checksum in by_name.items()
        if name == CONFIG_FILE or version_in(name) == version
    }
    if own:
        storage.write_checksums(manifest_uri, own)
    else:
        storage.delete(manifest_uri)


def _delete(checkpoint_path: str, is_old: Callable[[int], bool]) -> None:
    """Delete versions, except version 0 (initial values) and files that preserved epochs link to."""
    linked = _links_of(checkpoint_path)
    for version, stems in versions_of(checkpoint_path).items():
        for file in sorted(f"{stem}.v{version}.h5" for stem in stems if version and is_old(version)):
            if file not in linked:
                storage.delete(storage.join(checkpoint_path, file))
    for version in filter(is_old, manifest_versions(checkpoint_path)):
        storage.delete(manifest_of(checkpoint_path, version).uri)


def _links_of(checkpoint_path: str) -> dict[str, list[str]]:
    """Version files that are targets of links below the folder: their names, each with its links."""
    links: dict[str, list[str]] = {}
    for link, target in storage.links_below(checkpoint_path).items():
        if version_in(storage.name(target)) >= 0:
            links.setdefault(storage.name(target), []).append(link)
    return links


def _make_own(checkpoint_path: str, links: Iterable[str]) -> None:
    """Replace links to version files of the folder, and broken links, by the files themselves."""
    for link in links:
        target = storage.join(checkpoint_path, storage.name(storage.resolved(link)))
        is_broken = not storage.exists(link)
        if storage.exists(target) and (is_broken or storage.resolved(link) == storage.resolved(target)):
            storage.sweep(storage.parent(link))
            temporary = storage.temporary_sibling(link)
            _link_or_copy(target, temporary)
            storage.move(temporary, link)


def _link_or_copy(source: str, target: str) -> None:
    """Make a second name for a file that never changes, or a copy where there are no hard links."""
    source_path, target_path = storage.local_path(storage.resolved(source)), storage.local_path(target)
    if source_path and target_path:
        with suppress(OSError):  # a file system without hard links
            os.link(source_path, target_path)
            return
    with storage.open_input(source) as reader, storage.atomic_output(target) as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)
