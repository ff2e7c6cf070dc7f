"""Content of the HDF5 files of a PBG v1 checkpoint: attributes, rows, parameters, optimizer's state, checks.

    /  attributes: format_version, config/json, iteration/*   (a slash is part of an attribute's name)
       embeddings            float [count, D]
       optimizer/state_dict  opaque V1 [bytes]: torch.save(optimizer.state_dict())
       model/...             float, attribute state_dict_key

The files may come from anybody: only tensors are unpickled, and no link out of the file is followed. torch
is imported where it is used: a process that reads vectors alone, as in remap, starts a second earlier.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats._hdf5 import check_stored
from graphmill.model.parameters import global_key, parse_global_key, parse_operator_key
from graphmill.storage import Manifest

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
EMBEDDINGS = "embeddings"
OPTIMIZER = "optimizer/state_dict"
MODEL = "model"

_KEY = "state_dict_key"
_OPAQUE = np.dtype("V1")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Iteration:
    """The iteration that a version ends: the seven `iteration/` attributes of its files."""

    num_epochs: int
    epoch_idx: int
    num_edge_paths: int
    edge_path_idx: int
    edge_path: str
    num_edge_chunks: int
    edge_chunk_idx: int


@contextmanager
def open_checked(uri: str, manifest: Manifest | None = None) -> Iterator[h5py.File]:
    """Open the HDF5 file at `uri`, of the known format version.

    With the `manifest` of its checksum, the whole file is read.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not HDF5, has another version or checksum, or is damaged where the block reads.
    """
    with storage.open_hdf5(uri, manifest) as hdf5:
        try:
            found = hdf5.attrs.get("format_version")
            if not np.array_equal(found, FORMAT_VERSION):
                raise FormatError(
                    f"{uri}: attribute 'format_version' is {found}; this reader knows {FORMAT_VERSION}"
                )
            yield hdf5
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FormatError(f"{uri}: the file is damaged: {error}") from error


class DatasetRows:
    """Rows of a dataset [count, D], read piece by piece."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset

    @property
    def shape(self) -> tuple[int, int]:
        """(count, D)."""
        count, dimension = self._dataset.shape
        return int(count), int(dimension)

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) as float32, whatever the file has."""
        stop = min(stop, self.shape[0])
        rows = np.empty((stop - start, self.shape[1]), np.float32)
        if rows.size:
            self._dataset.read_direct(rows, np.s_[start:stop])
        return rows


def write_attributes(hdf5: h5py.File, config: Mapping[str, Any], iteration: Iteration | None) -> None:
    """Write the attributes of the root, without an unknown iteration."""
    hdf5.attrs["format_version"] = FORMAT_VERSION
    hdf5.attrs["config/json"] = json.dumps(config, indent=4)
    for key, value in asdict(iteration).items() if iteration else ():
        hdf5.attrs[f"iteration/{key}"] = value


def write_rows(hdf5: h5py.File, shape: tuple[int, int], batches: Iterable[Floats], uri: str) -> None:
    """Fill the dataset of the embeddings from the front."""
    dataset = hdf5.create_dataset(EMBEDDINGS, shape=shape, dtype=np.float32, track_times=False)
    num_written = 0
    for batch in batches:
        stop = num_written + len(batch)
        if stop > shape[0]:
            raise FormatError(f"{uri}: expected {shape[0]} rows, found at least {stop}")
        if len(batch):
            dataset[num_written:stop] = batch
        num_written = stop
    if num_written != shape[0]:
        raise FormatError(f"{uri}: expected {shape[0]} rows, found {num_written}")


def read_iteration(hdf5: h5py.File, uri: str) -> Iteration | None:
    """The iteration that the file ends, or None where the file does not say."""
    found = {each.name: hdf5.attrs.get(f"iteration/{each.name}") for each in fields(Iteration)}
    if all(value is None for value in found.values()):
        return None
    try:
        integers = {name: int(value) for name, value in found.items() if name != "edge_path"}
    except (TypeError, ValueError) as error:
        raise FormatError(f"{uri}: expected seven attributes 'iteration/...', found {found}") from error
    return Iteration(edge_path=str(found["edge_path"]), **integers)


def write_optimizer(hdf5: h5py.File, state: Mapping[str, Any] | None) -> None:
    """Write an optimizer's state_dict(); None leaves the dataset out."""
    if state is None:
        return
    import torch

    stream = io.BytesIO()
    torch.save(_detached(state), stream)
    opaque = np.frombuffer(stream.getbuffer(), dtype=_OPAQUE)
    hdf5.create_dataset(OPTIMIZER, data=opaque, track_times=False)


def read_optimizer(hdf5: h5py.File, uri: str) -> dict[str, Any] | None:
    """An optimizer's state_dict(), or None where the file has none; nothing but tensors is unpickled."""
    dataset = _dataset(hdf5, OPTIMIZER, uri)
    if dataset is None:
        return None
    if dataset.ndim != 1 or dataset.dtype != _OPAQUE:
        raise FormatError(
            f"{uri}: dataset {OPTIMIZER!r}: expected bytes of the opaque type V1, found {_described(dataset)}"
        )
    from graphmill.formats.torch_files.read import load_stream

    content = dataset[...].tobytes()
    state = load_stream(io.BytesIO(content), len(content), f"{uri}: dataset {OPTIMIZER!r}")
    if not isinstance(state, dict):
        raise FormatError(f"{uri}: dataset {OPTIMIZER!r}: expected a dict, found {type(state).__name__}")
    return state


def embeddings_dataset(hdf5: h5py.File, uri: str) -> h5py.Dataset:
    """The dataset of the embeddings, checked: float [count, D]."""
    dataset = _dataset(hdf5, EMBEDDINGS, uri)
    if dataset is None:
        raise FormatError(f"{uri}: expected a dataset {EMBEDDINGS!r}, found {', '.join(hdf5) or 'none'}")
    if dataset.ndim != 2 or dataset.dtype.kind != "f":
        raise FormatError(
            f"{uri}: dataset {EMBEDDINGS!r}: expected floats (count, dimension), found {_described(dataset)}"
        )
    return dataset


def write_parameters(hdf5: h5py.File, state: Mapping[str, Tensor], uri: str) -> None:
    """Write the group of the model's parameters, which PBG wants even if it is empty."""
    hdf5.create_group(MODEL)
    for key, parameter in state.items():
        values = parameter.detach().cpu().numpy()
        dataset = hdf5.create_dataset(_place(key, uri), data=values, track_times=False)
        dataset.attrs[_KEY] = key


def read_parameters(hdf5: h5py.File, uri: str) -> dict[str, Tensor]:
    """The model's parameters, float32, by state_dict_key; none without the group."""
    state: dict[str, Tensor] = {}

    import torch

    def visit(name: str, _: h5py.HLObject) -> None:
        dataset = _dataset(hdf5, f"{MODEL}/{name}", uri)
        if dataset is None:
            return
        key = dataset.attrs.get(_KEY)
        if not isinstance(key, str) or dataset.dtype.kind != "f":
            raise FormatError(
                f"{uri}: dataset {dataset.name!r}: expected floats with an attribute {_KEY!r}, "
                f"found {_described(dataset)} and {key}"
            )
        state[key] = torch.from_numpy(np.asarray(dataset[...], np.float32))

    if isinstance(hdf5.get(MODEL, getlink=True), h5py.HardLink):
        hdf5[MODEL].visititems(visit)  # follows no link that leads out of the file
    return state


def read_global_embedding(hdf5: h5py.File, entity_type: str, uri: str) -> Floats | None:
    """The vector [D] that is added to every embedding of a type, or None where the model has none."""
    name = _place(global_key(entity_type), uri)
    dataset = _dataset(hdf5, name, uri)
    if dataset is None:
        return None
    if dataset.ndim != 1 or dataset.dtype.kind != "f":
        raise FormatError(
            f"{uri}: dataset {name!r}: expected floats (dimension,), found {_described(dataset)}"
        )
    return np.asarray(dataset[...], np.float32)


def _place(key: str, uri: str) -> str:
    if found := parse_operator_key(key):
        return f"{MODEL}/relations/{found.relation}/operator/{found.side}/{found.parameter}"
    if entity_type := parse_global_key(key):
        return f"{MODEL}/entities/{entity_type}/global_embedding"
    raise FormatError(f"{uri}: the format has no place for a parameter named {key!r}")


def _dataset(hdf5: h5py.File, name: str, uri: str) -> h5py.Dataset | None:
    """The dataset of that name, or None; one whose values lie in another file is refused."""
    node = hdf5
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise FormatError(f"{uri}: {name!r}: expected a dataset of this file, found a link")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        return None
    check_stored(node, uri)
    return node


def _described(dataset: h5py.Dataset) -> str:
    return f"{dataset.dtype} {dataset.shape}"


def _detached(state: Any) -> Any:
    """`state` with tensors on the CPU that own their storage: torch.save writes a view's whole storage."""
    from torch import Tensor

    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _detached(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_detached(value) for value in state)
    return state
