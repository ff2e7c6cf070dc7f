"""Legacy checkpoints, whose files the package's docstring lists: versions, and names of keys and parameters.

    legacy                  v1
    outdir, loadPath        checkpoint_path, init_path; all other keys in camelCase
    rotation(s)             linear_transformation(s), transposed: the operator multiplied from the other side

Protocol: write the embeddings of version V, the metadata, then `commit`. Only CHECKPOINT_VERSION commits a
version. Metadata of older versions stay, as with PBG; embeddings of older versions are deleted.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from graphmill import storage
from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, Iteration, ModelState, PartitionFilesCheckpoint, Rows
from graphmill.checkpoints.legacy.inputs import IndexBase, of_partitions, partitions_of_ids
from graphmill.config import PbgConfig, check_known, from_python
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats.entity_counts import numbers_by_type
from graphmill.formats.torch_files import read as torch_files
from graphmill.formats.torch_files.write import NewTorchTensor, save
from graphmill.vocab import Partition

VERSION_FILE = "CHECKPOINT_VERSION"
METADATA = "METADATA_1.pt"
WRITTEN_BASE = 1

_FILE = re.compile(r"^(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.pt(?:\.(?P<version>\d+))?$")
_OTHERS = ("METADATA", "entity_count_")
_KEYS = {"checkpoint_path": "outdir", "init_path": "loadPath"}
_ROTATION = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)rotation(s?)$")
_LINEAR = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)linear_transformation(s?)$")


@dataclass(frozen=True)
class Metadata:
    """Content of METADATA_1.pt, with PBG v1's names; None: the file has no such element."""

    config: dict[str, Any]
    edge_path_count: int | None = None
    """Passes over an edge path that began before the version's last iteration."""
    edge_chunk: int | None = None
    """The chunk of that iteration."""
    parameters: dict[str, Tensor] | None = None
    optimizer_state: dict[str, Any] | None = None


def embeddings_uri(checkpoint_path: str, entity_type: str, number: int, version: int) -> str:
    """Place of one partition's embeddings; `number` is the number in the file's name."""
    return storage.join(checkpoint_path, f"{entity_type}_{number}.pt{_suffix(version)}")


def find_version(checkpoint_path: str) -> int:
    """The committed version; without CHECKPOINT_VERSION, the only version; 0 means no suffix."""
    uri = storage.join(checkpoint_path, VERSION_FILE)
    if storage.exists(uri):
        text = storage.read_text(uri).strip()
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise FormatError(f"{uri}: expected the number of a version, found {text[:40]!r}")
        return int(text)
    versions = set(versions_of(checkpoint_path))
    if 0 in versions or len(versions) == 1:
        return 0 if 0 in versions else versions.pop()
    remedy = f"; write the one that is meant into {VERSION_FILE}"
    known = f"versions {sorted(versions)}{remedy}" if versions else "no embeddings"
    raise FormatError(f"{checkpoint_path}: no {VERSION_FILE} and {known}")


def versions_of(checkpoint_path: str) -> dict[int, dict[str, set[int]]]:
    """Partition numbers of each entity type of each version, from the names of the files."""
    versions: dict[int, list[str]] = {}
    for entry in storage.list_dir(checkpoint_path):
        name = storage.name(entry.uri)
        if (match := _FILE.match(name)) and not name.startswith(_OTHERS) and not entry.is_dir:
            versions.setdefault(int(match["version"] or 0), []).append(name)
    return {version: numbers_by_type(files, _FILE) for version, files in versions.items()}


def read_metadata(checkpoint_path: str, version: int) -> Metadata | None:
    """Read the metadata; None if there are none, as in a loadPath."""
    uri = _metadata_uri(checkpoint_path, version)
    try:
        content = torch_files.load(uri)
    except NotFoundError:
        return None
    if not isinstance(content, tuple) or len(content) not in (2, 5) or not isinstance(content[0], Mapping):
        kinds = f"{type(content).__name__} of {len(content)}" if isinstance(content, tuple) else type(content)
        raise FormatError(f"{uri}: expected (config, edge paths, chunk, model, optimizer), found {kinds}")
    try:
        config = from_python(content[0])
        check_known(PbgConfig, config)
        states.checked_config(config, uri)
    except ConfigError as error:
        raise FormatError(
            f"{uri}: its configuration has no counterpart in PyTorch-BigGraph's version 1; change it with "
            f"torch.load and torch.save\n{error}"
        ) from error
    if len(content) == 2:
        return Metadata(config)
    match content[1:]:
        case (int(edge_path_count), int(edge_chunk), dict(model), None | dict() as state) if all(
            isinstance(value, Tensor) for value in model.values()
        ):
            floats = {key: value.detach().float() for key, value in model.items()}
            state = None if state is None else numbered(state, uri)
            renamed = _renamed_parameters(floats, state, _ROTATION, "linear_transformation")
            return Metadata(config, edge_path_count, edge_chunk, *renamed)
    kinds = ", ".join(type(part).__name__ for part in content)
    raise FormatError(f"{uri}: expected (dict, int, int, dict of tensors, dict), found ({kinds})")


def commit(checkpoint_path: str, version: int) -> None:
    """Commit `version`, whose files are all written, and delete older embeddings."""
    storage.write_text(storage.join(checkpoint_path, VERSION_FILE), str(version))
    for old, types in versions_of(checkpoint_path).items():
        for entity_type, numbers in types.items() if 0 < old < version else ():
            for number in numbers:
                storage.delete(embeddings_uri(checkpoint_path, entity_type, number, old))


def _pair(content: Any, uri: str) -> tuple[Tensor, Any]:
    match content:
        case (Tensor() as embeddings, None | dict()) if (
            embeddings.dim() == 2 and embeddings.is_floating_point()
        ):
            return embeddings, content[1]
    parts = content if isinstance(content, tuple) else (content,)
    described = ", ".join(map(torch_files.described, parts))
    raise FormatError(f"{uri}: expected (embeddings (count, dimension), optimizer state), found {described}")


def _metadata_uri(checkpoint_path: str, version: int) -> str:
    return storage.join(checkpoint_path, METADATA + _suffix(version))


def _suffix(version: int) -> str:
    return f".{version}" if version else ""


def legacy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """PBG v1's configuration with the legacy keys."""

    def inner(section: Mapping[str, Any]) -> dict[str, Any]:
        return {_camel(key): value for key, value in section.items()}

    renamed = {_KEYS.get(key) or _camel(key): value for key, value in config.items()}
    if "entities" in renamed:  # the keys are names of types
        renamed["entities"] = {name: inner(entity) for name, entity in renamed["entities"].items()}
    if "relations" in renamed:
        renamed["relations"] = [inner(relation) for relation in renamed["relations"]]
    return renamed


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), key)


def numbered(optimizer_state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A torch optimizer's state_dict() with parameters numbered from 0; an old torch used addresses."""
    optimizer_state = states.checked_state(optimizer_state, where)
    if not optimizer_state.keys() >= {"param_groups", "state"}:
        return optimizer_state
    groups, state = optimizer_state["param_groups"], optimizer_state["state"]
    parameters = [parameter for group in groups for parameter in group.get("params", ())]
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    renumbered = [group | {"params": [numbers[old] for old in group.get("params", ())]} for group in groups]
    entries = {numbers[parameter]: value for parameter, value in state.items() if parameter in numbers}
    return optimizer_state | {"state": entries, "param_groups": renumbered}


def _renamed_parameters(
    parameters: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None,
    pattern: re.Pattern[str],
    name: str,
) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Parameters of operators that match get the new name, transposed, and so do their sums."""
    renamed: dict[str, Tensor] = {}
    turned: set[int] = set()
    for number, (key, value) in enumerate(parameters.items()):
        if (match := pattern.match(key)) and value.dim() >= 2:
            renamed[f"{match[1]}{name}{match[2]}"] = _transposed(value)
            turned.add(number)
        else:
            renamed[key] = value
    if optimizer_state is None:
        return renamed, None
    entries = {
        number: {kind: _transposed(value) for kind, value in sums.items()} if number in turned else sums
        for number, sums in optimizer_state.get("state", {}).items()
    }
    return renamed, dict(optimizer_state) | ({"state": entries} if "state" in optimizer_state else {})


def _transposed(value: Any) -> Any:
    return value.transpose(-1, -2).contiguous() if isinstance(value, Tensor) and value.dim() >= 2 else value


class LegacyCheckpoint(PartitionFilesCheckpoint):
    """A version of a legacy outdir, or a loadPath."""

    def __init__(
        self,
        uri: str,
        version: int | None = None,
        index_base: IndexBase = "auto",
        entity_path: str | None = None,
        **_: object,
    ) -> None:
        """Raises FormatError if there is no such version, or if the names fit no index base.

        Of types that the metadata do not have, counts and names in `entity_path` tell the least partitions.
        """
        super().__init__(uri, find_version(uri) if version is None else version)
        numbers = versions_of(uri).get(self.version)
        if not numbers:
            raise FormatError(f"{uri}: version {self.version} has no embeddings")
        declared = states.declared_partitions(self.config, set(numbers))
        told = partitions_of_ids(entity_path) if entity_path else {}
        wanted = {name: max(len(files), told.get(name, 0)) for name, files in numbers.items()} | declared
        self.index_base = of_partitions(
            numbers,
            index_base,
            uri,
            lambda name, number: embeddings_uri(uri, name, number, self.version),
            wanted if told or declared.keys() >= numbers.keys() else None,
        )
        states.check_complete({name: len(files) for name, files in numbers.items()}, self.config, uri)
        self._num_partitions = {name: declared.get(name, len(numbers[name])) for name in numbers}

    @cached_property
    def _metadata(self) -> Metadata | None:
        return read_metadata(self.uri, self.version)

    def embeddings_uri(self, entity_type: str, partition: Partition) -> str:
        """URI of the partition's file."""
        return embeddings_uri(self.uri, entity_type, partition + self.index_base, self.version)

    @contextmanager
    def open_rows(self, entity_type: str, partition: Partition, *, whole: bool = False) -> Iterator[Rows]:
        """The embeddings of one partition; the format has no checksums."""
        uri = self.embeddings_uri(entity_type, partition)
        with torch_files.open_torch(uri) as file:
            rows = file.rows(_pair(file.content, uri)[0])
            shape = rows.shape[0], rows.shape[1]
            yield Rows(shape, lambda start, stop: rows.read(start, stop).astype(np.float32, copy=False))

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        uri = self.embeddings_uri(entity_type, partition)
        with torch_files.open_torch(uri) as file:
            state = file.loaded(_pair(file.content, uri)[1])
        return None if state is None else numbered(state, uri)

    def _read_model(self) -> ModelState | None:
        metadata = self._metadata
        if metadata is None or metadata.parameters is None:
            return None
        keys = self._in_order(metadata.parameters)
        state = states.reordered(metadata.optimizer_state, list(metadata.parameters), keys)
        return ModelState({key: metadata.parameters[key] for key in keys}, state)

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration in the metadata."""
        return None if self._metadata is None else self._metadata.config

    @property
    def iteration(self) -> Iteration | None:
        """The iteration, from the metadata and the version, which counts finished iterations."""
        metadata = self._metadata or Metadata({})
        count, chunk = metadata.edge_path_count, metadata.edge_chunk
        if count is None or chunk is None or not self.version:
            return None
        edge_paths = list(metadata.config.get("edge_paths") or [""])
        num_chunks = metadata.config.get("num_edge_chunks")
        if not num_chunks:  # PBG chose the number of chunks by the number of edges
            num_chunks = max(chunk + 1, (self.version - chunk - 1) // count if count else 1)
        count, chunk = divmod(self.version - 1, num_chunks)
        epoch_idx, edge_path_idx = divmod(count, len(edge_paths))
        return Iteration(
            num_epochs=int(metadata.config.get("num_epochs", epoch_idx + 1)),
            epoch_idx=epoch_idx,
            num_edge_paths=len(edge_paths),
            edge_path_idx=edge_path_idx,
            edge_path=str(edge_paths[edge_path_idx]),
            num_edge_chunks=num_chunks,
            edge_chunk_idx=chunk,
        )


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write `source` as a legacy outdir, numbered from 1, and return the lost content: nothing."""
    version = max(source.version, 1)
    for entity_type, partition, shape in source.partitions():
        rows = NewTorchTensor(shape, source.iter_embeddings(entity_type, partition))
        state = source.read_optimizer_state(entity_type, partition)
        save(embeddings_uri(target_uri, entity_type, partition + WRITTEN_BASE, version), (rows, state))
    model = source.read_model() or ModelState({}, None)
    iteration = source.iteration
    metadata = (
        legacy_config(source.described_config()),
        iteration.epoch_idx * iteration.num_edge_paths + iteration.edge_path_idx if iteration else 0,
        iteration.edge_chunk_idx if iteration else 0,
        *_renamed_parameters(model.parameters, model.optimizer_state, _LINEAR, "rotation"),
    )
    save(_metadata_uri(target_uri, version), metadata)
    commit(target_uri, version)
    return []
