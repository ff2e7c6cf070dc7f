"""PBG v1 checkpoints: embeddings, relation parameters and optimizer states, one version at a time.

    checkpoint_path/
      checkpoint_version.txt              the latest complete version; no file means none (0)
      config.json                         PBG's configuration
      embeddings_{type}_{part}.v{V}.h5    embeddings [count, D] float32, optimizer/state_dict
      model.v{V}.h5                       model/relations/..., model/entities/..., optimizer/state_dict
      training_stats.json                 JSON lines, one a bucket
      epoch_{N}/                          a preserved version, itself a checkpoint

Protocol: write the embeddings of version V, the model, the stats, then `commit`. Every file appears
whole (temporary name, rename), and only checkpoint_version.txt makes a version count, so a kill at any
point leaves the old version or the new one. The same content gives the same bytes.

Source: docs/formats/pbg_v1.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import _pbg_hdf5 as content
from graphmill.formats._pbg_hdf5 import Floats, Iteration
from graphmill.vocab import Partition

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Iteration",
    "append_stats",
    "commit",
    "delete_uncommitted",
    "embeddings_uri",
    "epoch_path",
    "iter_embeddings",
    "model_uri",
    "read_config",
    "read_embeddings",
    "read_global_embedding",
    "read_model",
    "read_stats",
    "read_version",
    "shape_of",
    "write_config",
    "write_embeddings",
    "write_model",
]

VERSION_FILE = "checkpoint_version.txt"
CONFIG_FILE = "config.json"
STATS_FILE = "training_stats.json"

_VERSIONED = re.compile(r"^(?P<stem>embeddings_.+_\d+|model)\.v(?P<version>\d+)\.h5$")
_COPY_BYTES = 8 << 20


def embeddings_uri(checkpoint_path: str, entity_type: str, partition: Partition, version: int) -> str:
    """Place of one partition's embeddings."""
    return storage.join(checkpoint_path, f"embeddings_{entity_type}_{partition}.v{version}.h5")


def model_uri(checkpoint_path: str, version: int) -> str:
    """Place of the parameters that belong to no entity."""
    return storage.join(checkpoint_path, f"model.v{version}.h5")


def epoch_path(checkpoint_path: str, epoch: int) -> str:
    """Folder of the preserved version of an epoch, itself a checkpoint."""
    return storage.join(checkpoint_path, f"epoch_{epoch}")


def read_version(checkpoint_path: str) -> int:
    """The committed version; 0 where there is no checkpoint.

    Raises:
        FormatError: the file is empty (PBG, killed while committing) or holds no version.
    """
    uri = storage.join(checkpoint_path, VERSION_FILE)
    if not storage.exists(uri):
        return 0
    text = storage.read_text(uri).strip()
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise FormatError(
            f"{uri}: expected the number of a version, found {text[:40]!r}; write the version of the "
            "files beside it that are complete, or delete the checkpoint to start from scratch"
        )
    return int(text)


def commit(checkpoint_path: str, version: int, *, preserve_epoch: int | None) -> None:
    """Make `version`, all of whose files are written, the one that counts; delete the older ones.

    The copy for `preserve_epoch` is made first: a kill in between makes it again, and never loses it.

    Raises:
        FormatError: `version` lacks a file that the committed version has, or its model.
    """
    committed = read_version(checkpoint_path)
    versions = _versions(checkpoint_path)
    lacking = (versions.get(committed, set()) | {content.MODEL}) - versions.get(version, set())
    if lacking:
        raise FormatError(
            f"{checkpoint_path}: version {version} cannot be committed: it lacks {', '.join(sorted(lacking))}"
        )
    if preserve_epoch is not None:
        _preserve(checkpoint_path, version, epoch_path(checkpoint_path, preserve_epoch))
    storage.write_text(storage.join(checkpoint_path, VERSION_FILE), f"{version}\n")
    _delete(checkpoint_path, [old for old in versions if old < version])


def delete_uncommitted(checkpoint_path: str) -> None:
    """Delete what a kill left beside the committed version: half a successor, predecessors, temporary files.

    Later versions stay: no kill leaves them, so a checkpoint that lost its version file is not touched.
    """
    committed = read_version(checkpoint_path)
    left = [each for each in _versions(checkpoint_path) if each < committed or each == committed + 1]
    _delete(checkpoint_path, left)
    storage.sweep(checkpoint_path)


def write_embeddings(
    checkpoint_path: str,
    entity_type: str,
    partition: Partition,
    version: int,
    embeddings: Floats,
    optimizer_state: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    iteration: Iteration,
) -> None:
    """Write one partition: embeddings [count, D], the optimizer's state_dict() where there is one."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with storage.create_hdf5(uri) as hdf5:
        content.write_attributes(hdf5, config, iteration)
        hdf5.create_dataset(content.EMBEDDINGS, data=embeddings, dtype=np.float32, track_times=False)
        content.write_optimizer(hdf5, optimizer_state)


def read_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> tuple[Floats, dict[str, Any] | None]:
    """One partition: embeddings [count, D] float32, and its optimizer's state or None.

    Raises:
        NotFoundError: the version has no such file.
        FormatError: the file is not what the format says.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri) as hdf5:
        dataset = content.embeddings_dataset(hdf5, uri)
        return content.read_rows(dataset, 0, dataset.shape[0]), content.read_optimizer(hdf5, uri)


def shape_of(checkpoint_path: str, entity_type: str, partition: Partition, version: int) -> tuple[int, int]:
    """(count, D) of one partition's embeddings."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri) as hdf5:
        count, dimension = content.embeddings_dataset(hdf5, uri).shape
        return int(count), int(dimension)


def iter_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int, batch_rows: int
) -> Iterator[Floats]:
    """One partition's embeddings in order, [<= batch_rows, D] at a time."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri) as hdf5:
        dataset = content.embeddings_dataset(hdf5, uri)
        for start in range(0, dataset.shape[0], batch_rows):
            yield content.read_rows(dataset, start, start + batch_rows)


def write_model(
    checkpoint_path: str,
    version: int,
    state: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    iteration: Iteration,
) -> None:
    """Write the parameters that belong to no entity, by `state_dict_key` ("rhs_operators.0.real")."""
    uri = model_uri(checkpoint_path, version)
    with storage.create_hdf5(uri) as hdf5:
        content.write_attributes(hdf5, config, iteration)
        content.write_parameters(hdf5, state, uri)
        content.write_optimizer(hdf5, optimizer_state)


def read_model(
    checkpoint_path: str, version: int
) -> tuple[dict[str, Tensor], dict[str, Any] | None, Iteration | None]:
    """The parameters by `state_dict_key`, float32; the optimizer's state; the iteration that ended there.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file is not what the format says.
    """
    uri = model_uri(checkpoint_path, version)
    with content.open_checked(uri) as hdf5:
        return (
            content.read_parameters(hdf5, uri),
            content.read_optimizer(hdf5, uri),
            content.read_iteration(hdf5, uri),
        )


def read_global_embedding(checkpoint_path: str, entity_type: str, version: int) -> Floats | None:
    """The vector [D] float32 that is added to every embedding of a type, or None; nothing else is read.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file is not what the format says.
    """
    uri = model_uri(checkpoint_path, version)
    with content.open_checked(uri) as hdf5:
        return content.read_global_embedding(hdf5, entity_type, uri)


def write_config(checkpoint_path: str, config: Mapping[str, Any]) -> None:
    """Write config.json: PBG's configuration, PBG's keys only."""
    storage.write_text(storage.join(checkpoint_path, CONFIG_FILE), json.dumps(config, indent=4))


def read_config(checkpoint_path: str) -> dict[str, Any]:
    """PBG's configuration that the checkpoint was trained with.

    Raises:
        NotFoundError: the checkpoint has no config.json.
        FormatError: it is not a JSON object.
    """
    uri = storage.join(checkpoint_path, CONFIG_FILE)
    return _json_object(storage.read_text(uri), uri)


def append_stats(checkpoint_path: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add JSON lines; a line of a bucket that an interrupted iteration already told of replaces it."""
    added = [dict(line) for line in lines]
    again = {_bucket_visit(line) for line in added} - {None}
    kept = [line for line in read_stats(checkpoint_path) if _bucket_visit(line) not in again]
    text = "".join(json.dumps(line) + "\n" for line in kept + added)
    storage.write_text(storage.join(checkpoint_path, STATS_FILE), text)


def read_stats(checkpoint_path: str) -> list[dict[str, Any]]:
    """The lines of training_stats.json; none where there is no such file.

    Raises:
        FormatError: a line is not a JSON object.
    """
    uri = storage.join(checkpoint_path, STATS_FILE)
    if not storage.exists(uri):
        return []
    lines = storage.read_text(uri).splitlines()
    return [_json_object(line, f"{uri}: line {number}") for number, line in enumerate(lines, 1) if line]


def _bucket_visit(line: Mapping[str, Any]) -> tuple[Any, ...] | None:
    names = ("epoch_idx", "edge_path_idx", "edge_chunk_idx", "lhs_partition", "rhs_partition")
    return tuple(line[name] for name in names) if all(name in line for name in names) else None


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: expected a JSON object, found something else: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(found).__name__}")
    return found


def _versions(checkpoint_path: str) -> dict[int, set[str]]:
    """The versions that have files, with the stems of their names."""
    versions: dict[int, set[str]] = {}
    for entry in storage.list_dir(checkpoint_path):
        if (match := _VERSIONED.match(storage.name(entry.uri))) and not entry.is_dir:
            versions.setdefault(int(match["version"]), set()).add(match["stem"])
    return versions


def _preserve(checkpoint_path: str, version: int, target_path: str) -> None:
    """Make `target_path` a checkpoint of that one version."""
    with storage.atomic_directory(target_path) as temporary:
        for entry in storage.list_dir(checkpoint_path):
            name = storage.name(entry.uri)
            match = _VERSIONED.match(name)
            if name == CONFIG_FILE or (match and int(match["version"]) == version):
                _link_or_copy(entry.uri, storage.join(temporary, name))
        storage.write_text(storage.join(temporary, VERSION_FILE), f"{version}\n")


def _link_or_copy(source: str, target: str) -> None:
    """A second name for a file that nobody will change, or a copy where there are no links."""
    source_path, target_path = storage.local_path(source), storage.local_path(target)
    if source_path and target_path:
        try:
            os.link(source_path, target_path)
        except OSError:  # a file system without hard links
            pass
        else:
            return
    with storage.open_input(source) as reader, storage.atomic_output(target) as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)


def _delete(checkpoint_path: str, versions: Iterable[int]) -> None:
    for version in versions:
        for stem in _versions(checkpoint_path).get(version, set()):
            storage.delete(storage.join(checkpoint_path, f"{stem}.v{version}.h5"))
