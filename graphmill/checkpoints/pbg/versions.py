"""Versions of a checkpoint: commit, keep, restore, move aside, clean up.

PBG preserves an epoch as a folder of links; we use copies or hard links.

    checkpoint_path/
      embeddings_user_0.v2.h5
      epoch_2/embeddings_user_0.v2.h5 -> /where/it/was/checkpoint/embeddings_user_0.v2.h5

The name of the target identifies the file: in a checkpoint that was moved, the link is broken, and the
file of that name beside the folder is still the right one.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from graphmill import storage
from graphmill.checkpoints.pbg.files import (
    CONFIG_FILE,
    MODEL,
    VERSION_FILE,
    epoch_path,
    manifest_of,
    manifest_versions,
    read_version,
    version_in,
    versions_of,
)
from graphmill.errors import FormatError
from graphmill.storage.checksums import of_file

_COPY_BYTES = 8 << 20

log = logging.getLogger("graphmill")


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
            log.info(
                "checkpoint: another epoch had been preserved as %s: it is moved to %s", kept_path, aside
            )
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
    """Whether a folder holds exactly that version, by the checksums of its files."""
    stems = versions_of(checkpoint_path).get(version, set())
    if read_version(other_path) != version or versions_of(other_path) != {version: stems}:
        return False
    files = [f"{stem}.v{version}.h5" for stem in stems]
    return all(
        of_file(storage.join(checkpoint_path, file)) == of_file(storage.join(other_path, file))
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
