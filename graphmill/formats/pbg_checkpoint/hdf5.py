"""Attributes and the optimizer's state, which every HDF5 file of a PBG v1 checkpoint has.

    /  attributes: format_version, config/json, iteration/*   (a slash is part of an attribute's name)
       optimizer/state_dict  opaque V1 [bytes]: torch.save(optimizer.state_dict())

The files may come from anybody: only tensors are unpickled. torch is imported where it is used: a process
that reads vectors alone, as in remap, starts a second earlier.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import h5py
import numpy as np

from graphmill.errors import FormatError
from graphmill.formats._hdf5 import FORMAT_VERSION, described, find_dataset

OPTIMIZER = "optimizer/state_dict"

_OPAQUE = np.dtype("V1")


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


def write_attributes(hdf5: h5py.File, config: Mapping[str, Any], iteration: Iteration | None) -> None:
    """Write the attributes of the root, without an unknown iteration."""
    hdf5.attrs["format_version"] = FORMAT_VERSION
    hdf5.attrs["config/json"] = json.dumps(config, indent=4)
    for key, value in asdict(iteration).items() if iteration else ():
        hdf5.attrs[f"iteration/{key}"] = value


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

    from graphmill.formats.torch_files.read import mapped

    stream = io.BytesIO()
    # torch.save() writes the whole storage of a view: a copy has its own.
    torch.save(mapped(state, lambda tensor: tensor.detach().to("cpu", copy=True)), stream)
    opaque = np.frombuffer(stream.getbuffer(), dtype=_OPAQUE)
    hdf5.create_dataset(OPTIMIZER, data=opaque, track_times=False)


def read_optimizer(hdf5: h5py.File, uri: str) -> dict[str, Any] | None:
    """An optimizer's state_dict(), or None where the file has none; nothing but tensors is unpickled."""
    dataset = find_dataset(hdf5, OPTIMIZER, uri)
    if dataset is None:
        return None
    where = f"{uri}: dataset {OPTIMIZER!r}"
    if dataset.ndim != 1 or dataset.dtype != _OPAQUE:
        raise FormatError(f"{where}: expected bytes of the opaque type V1, found {described(dataset)}")
    from graphmill.formats.torch_files.read import load_stream

    content = dataset[...].tobytes()
    state = load_stream(io.BytesIO(content), len(content), where)
    if not isinstance(state, dict):
        raise FormatError(f"{where}: expected a dict, found {type(state).__name__}")
    return state
