"""Legacy checkpoints: the package's docstring lists the files.

Protocol: write the embeddings of version V, the metadata, then `commit`. Only CHECKPOINT_VERSION commits a
version. Metadata of older versions stay, as with PBG; embeddings of older versions are deleted.
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
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats._partition_numbers import numbers_by_type
from graphmill.formats.pbg_legacy import names
from graphmill.formats.torch_files import read as torch_files
from graphmill.formats.torch_files.rows import TensorRows
from graphmill.formats.torch_files.write import NewTensor, save

VERSION_FILE = "CHECKPOINT_VERSION"
METADATA = "METADATA_1.pt"

_FILE = re.compile(r"^(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.pt(?:\.(?P<version>\d+))?$")
_OTHERS = ("METADATA", "entity_count_")

Floats = npt.NDArray[np.float32]


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
    """One partition's embeddings, to be read piece by piece within the block.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it does not follow the format.
    """
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
    """The state of one partition's optimizer, or None; the embeddings are not read.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it does not follow the format.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, number, version)
    with torch_files.open_torch(uri) as file:
        state = file.loaded(_pair(file.content, uri)[1])
    return None if state is None else names.numbered(state)


def read_metadata(checkpoint_path: str, version: int) -> Metadata | None:
    """Read the metadata; None if there are none, as in a loadPath.

    Raises:
        FormatError: the file does not follow the format.
    """
    uri = _metadata_uri(checkpoint_path, version)
    try:
        content = torch_files.load(uri)
    except NotFoundError:
        return None
    if not isinstance(content, tuple) or len(content) not in (2, 5) or not isinstance(content[0], Mapping):
        found = f"{type(content).__name__} of {len(content)}" if isinstance(content, tuple) else type(content)
        raise FormatError(f"{uri}: expected (config, edge paths, chunk, model, optimizer), found {found}")
    try:
        config = names.v1_config(content[0])
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
            return Metadata(config, edge_path_count, edge_chunk, *names.v1_parameters(floats, state))
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
    save(uri, (NewTensor(shape, batches), optimizer_state))


def write_metadata(checkpoint_path: str, version: int, metadata: Metadata) -> None:
    """Write the metadata."""
    config = names.legacy_config(metadata.config)
    model = names.legacy_parameters(metadata.parameters or {}, metadata.optimizer_state)
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
