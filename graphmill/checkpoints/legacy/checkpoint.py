"""Legacy checkpoints: the package's docstring lists the files.

Protocol: write the embeddings of version V, the metadata, then `commit`. Only CHECKPOINT_VERSION commits a
version. Metadata of older versions stay, as with PBG; embeddings of older versions are deleted.

The legacy names of configuration keys and parameters, and states of optimizers as an old torch saved them.

legacy                  v1
outdir, loadPath        checkpoint_path, init_path; all other keys in camelCase
rotation(s)             linear_transformation(s), transposed: the operator multiplied from the other side
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from graphmill import storage
from graphmill.config import PbgConfig, check_known, from_python
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats.partition_numbers import numbers_by_type
from graphmill.formats.torch_files import read as torch_files
from graphmill.formats.torch_files.stored import TensorRows
from graphmill.formats.torch_files.write import NewTorchTensor, save

VERSION_FILE = "CHECKPOINT_VERSION"
METADATA = "METADATA_1.pt"

_FILE = re.compile(r"^(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.pt(?:\.(?P<version>\d+))?$")
_OTHERS = ("METADATA", "entity_count_")

Floats = npt.NDArray[np.float32]

_KEYS = {"checkpoint_path": "outdir", "init_path": "loadPath"}
_ROTATION = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)rotation(s?)$")
_LINEAR = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)linear_transformation(s?)$")

OptimizerState = Mapping[str, Any] | None
Renamed = tuple[dict[str, Tensor], dict[str, Any] | None]


def legacy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """PBG v1's configuration with the legacy keys."""

    def inner(section: Any) -> Any:
        return (
            {_camel(key): value for key, value in section.items()}
            if isinstance(section, Mapping)
            else section
        )

    renamed = {_KEYS.get(key) or _camel(key): value for key, value in config.items()}
    entities, relations = renamed.get("entities"), renamed.get("relations")
    if isinstance(entities, Mapping):  # the keys are names of types
        renamed["entities"] = {name: inner(entity) for name, entity in entities.items()}
    if isinstance(relations, list | tuple):
        renamed["relations"] = [inner(relation) for relation in relations]
    return renamed


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), key)


def v1_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A legacy configuration, or a part of one, with the keys and values of PBG v1."""
    found = from_python(config)
    check_known(PbgConfig, found)
    return found


def legacy_parameters(parameters: Mapping[str, Tensor], optimizer_state: OptimizerState) -> Renamed:
    """v1's parameters, and the state of their optimizer, under the legacy names."""
    return _renamed_parameters(parameters, optimizer_state, _LINEAR, "rotation")


def v1_parameters(parameters: Mapping[str, Tensor], optimizer_state: OptimizerState) -> Renamed:
    """Legacy parameters, and the state of their optimizer, under v1's names."""
    state = None if optimizer_state is None else numbered(optimizer_state)
    return _renamed_parameters(parameters, state, _ROTATION, "linear_transformation")


def numbered(optimizer_state: Mapping[str, Any]) -> dict[str, Any]:
    """A torch optimizer's state_dict() with parameters numbered from 0; an old torch used addresses."""
    groups, state = optimizer_state.get("param_groups"), optimizer_state.get("state")
    if not isinstance(groups, list) or not isinstance(state, Mapping):
        return dict(optimizer_state)
    numbers: dict[Any, int] = {}
    for group in groups:
        for parameter in group["params"]:
            numbers[parameter] = len(numbers)
    renumbered = [group | {"params": [numbers[each] for each in group["params"]]} for group in groups]
    states = {numbers[parameter]: value for parameter, value in state.items() if parameter in numbers}
    return dict(optimizer_state) | {"state": states, "param_groups": renumbered}


def _renamed_parameters(
    parameters: Mapping[str, Tensor], optimizer_state: OptimizerState, pattern: re.Pattern[str], name: str
) -> Renamed:
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
    state = dict(optimizer_state)
    if isinstance(state.get("state"), Mapping):
        state["state"] = {
            number: {each: _transposed(value) for each, value in sums.items()} if number in turned else sums
            for number, sums in state["state"].items()
        }
    return renamed, state


def _transposed(value: Any) -> Any:
    return value.transpose(-1, -2).contiguous() if isinstance(value, Tensor) and value.dim() >= 2 else value


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
    """The committed version; without CHECKPOINT_VERSION, the only version; 0 means no suffix.

    Raises:
        FormatError: CHECKPOINT_VERSION holds no number; or it is missing, and there are several versions.
    """
    uri = storage.join(checkpoint_path, VERSION_FILE)
    if storage.exists(uri):
        text = storage.read_text(uri).strip()
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise FormatError(f"{uri}: expected the number of a version, found {text[:40]!r}")
        return int(text)
    versions = set(versions_of(checkpoint_path))
    if 0 in versions or len(versions) == 1:
        return 0 if 0 in versions else versions.pop()
    found = f"versions {sorted(versions)}" if versions else "no embeddings"
    raise FormatError(f"{checkpoint_path}: no {VERSION_FILE} and {found}; say which version is meant")


def versions_of(checkpoint_path: str) -> dict[int, dict[str, set[int]]]:
    """Partition numbers of each entity type of each version, from the names of the files."""
    versions: dict[int, list[str]] = {}
    for entry in storage.list_dir(checkpoint_path):
        name = storage.name(entry.uri)
        if (match := _FILE.match(name)) and not name.startswith(_OTHERS) and not entry.is_dir:
            versions.setdefault(int(match["version"] or 0), []).append(name)
    return {version: numbers_by_type(files, _FILE) for version, files in versions.items()}


@contextmanager
def open_embeddings(
    checkpoint_path: str, entity_type: str, number: int, version: int
) -> Iterator["FloatRows"]:
    """One partition's embeddings, to be read piece by piece within the block."""
    uri = embeddings_uri(checkpoint_path, entity_type, number, version)
    with torch_files.open_torch(uri) as file:
        yield FloatRows(file.rows(_pair(file.content, uri)[0]))


class FloatRows:
    """Rows of a tensor [N, D] as float32, whatever the file has."""

    def __init__(self, rows: TensorRows) -> None:
        self._rows = rows
        self.shape = rows.shape[0], rows.shape[1]

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop)."""
        return self._rows.read(start, stop).astype(np.float32, copy=False)


def read_optimizer_state(
    checkpoint_path: str, entity_type: str, number: int, version: int
) -> dict[str, Any] | None:
    """The state of one partition's optimizer, or None; the embeddings are not read."""
    uri = embeddings_uri(checkpoint_path, entity_type, number, version)
    with torch_files.open_torch(uri) as file:
        state = file.loaded(_pair(file.content, uri)[1])
    return None if state is None else numbered(state)


def read_metadata(checkpoint_path: str, version: int) -> Metadata | None:
    """Read the metadata; None if there are none, as in a loadPath."""
    uri = _metadata_uri(checkpoint_path, version)
    try:
        content = torch_files.load(uri)
    except NotFoundError:
        return None
    if not isinstance(content, tuple) or len(content) not in (2, 5) or not isinstance(content[0], Mapping):
        found = f"{type(content).__name__} of {len(content)}" if isinstance(content, tuple) else type(content)
        raise FormatError(f"{uri}: expected (config, edge paths, chunk, model, optimizer), found {found}")
    try:
        config = v1_config(content[0])
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
            return Metadata(config, edge_path_count, edge_chunk, *v1_parameters(floats, state))
    found = ", ".join(type(each).__name__ for each in content)
    raise FormatError(f"{uri}: expected (dict, int, int, dict of tensors, dict), found ({found})")


def write_embeddings(
    checkpoint_path: str,
    entity_type: str,
    number: int,
    version: int,
    shape: tuple[int, int],
    batches: Iterable[Floats],
    optimizer_state: Mapping[str, Any] | None,
) -> None:
    """Write one partition: embeddings of `shape` (count, D), in batches [n, D]."""
    uri = embeddings_uri(checkpoint_path, entity_type, number, version)
    save(uri, (NewTorchTensor(shape, batches), optimizer_state))


def write_metadata(checkpoint_path: str, version: int, metadata: Metadata) -> None:
    """Write the metadata."""
    config = legacy_config(metadata.config)
    model = legacy_parameters(metadata.parameters or {}, metadata.optimizer_state)
    content = (config, metadata.edge_path_count or 0, metadata.edge_chunk or 0, *model)
    save(_metadata_uri(checkpoint_path, version), content)


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
    found = ", ".join(map(torch_files.described, parts))
    raise FormatError(f"{uri}: expected (embeddings (count, dimension), optimizer state), found {found}")


def _metadata_uri(checkpoint_path: str, version: int) -> str:
    return storage.join(checkpoint_path, METADATA + _suffix(version))


def _suffix(version: int) -> str:
    return f".{version}" if version else ""
