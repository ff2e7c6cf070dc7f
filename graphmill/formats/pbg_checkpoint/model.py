"""The parameters that belong to no entity, with the state of their optimizer.

model.v{V}.h5           attributes and optimizer/state_dict: see hdf5
    model/relations/{r}/operator/{side}/{parameter}     float, attribute state_dict_key
    model/entities/{type}/global_embedding              float [D], attribute state_dict_key
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats._hdf5 import checked_dataset, described, find_dataset, open_checked
from graphmill.formats.pbg_checkpoint.embeddings import Floats
from graphmill.formats.pbg_checkpoint.hdf5 import (
    Iteration,
    read_iteration,
    read_optimizer,
    write_attributes,
    write_optimizer,
)
from graphmill.formats.pbg_checkpoint.names import MODEL, manifest_of, model_uri
from graphmill.model.parameters import global_key, parse_global_key, parse_operator_key
from graphmill.storage import Checksums

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "state_dict_key"


def write_model(
    checkpoint_path: str,
    version: int,
    state: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    iteration: Iteration | None,
    checksums: Checksums | None = None,
) -> None:
    """Write the parameters by `state_dict_key` ("rhs_operators.0.real").

    The checksum of the file is added to `checksums`.

    Raises:
        FormatError: the format has no place for a parameter of that name.
    """
    uri = model_uri(checkpoint_path, version)
    with storage.create_hdf5(uri, checksums) as hdf5:
        write_attributes(hdf5, config, iteration)
        hdf5.create_group(MODEL)  # PBG wants the group even if it is empty
        for key, parameter in state.items():
            values = parameter.detach().cpu().numpy()
            dataset = hdf5.create_dataset(_place(key, uri), data=values, track_times=False)
            dataset.attrs[_KEY] = key
        write_optimizer(hdf5, optimizer_state)


def read_model(
    checkpoint_path: str, version: int
) -> tuple[dict[str, Tensor], dict[str, Any] | None, Iteration | None]:
    """The parameters by `state_dict_key`, float32; the optimizer's state; the iteration that ended there.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = model_uri(checkpoint_path, version)
    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        return _read_parameters(hdf5, uri), read_optimizer(hdf5, uri), read_iteration(hdf5, uri)


def read_model_iteration(checkpoint_path: str, version: int) -> Iteration | None:
    """The iteration that the version ends, or None where its model file does not say."""
    uri = model_uri(checkpoint_path, version)
    with open_checked(uri) as hdf5:
        return read_iteration(hdf5, uri)


def read_global_embedding(checkpoint_path: str, entity_type: str, version: int) -> Floats | None:
    """The vector [D] float32 that is added to every embedding of a type, or None; read without torch.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = model_uri(checkpoint_path, version)
    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        name = _place(global_key(entity_type), uri)
        if find_dataset(hdf5, name, uri) is None:
            return None
        return np.asarray(checked_dataset(hdf5, name, "f", uri)[...], np.float32)


def _read_parameters(hdf5: h5py.File, uri: str) -> dict[str, Tensor]:
    """The parameters, float32, by state_dict_key; none without the group."""
    import torch

    state: dict[str, Tensor] = {}

    def visit(name: str, _: h5py.HLObject) -> None:
        dataset = find_dataset(hdf5, f"{MODEL}/{name}", uri)
        if dataset is None:
            return
        key = dataset.attrs.get(_KEY)
        if not isinstance(key, str) or dataset.dtype.kind != "f":
            raise FormatError(
                f"{uri}: dataset {dataset.name!r}: expected floats with an attribute {_KEY!r}, "
                f"found {described(dataset)} and {key}"
            )
        state[key] = torch.from_numpy(np.asarray(dataset[...], np.float32))

    if isinstance(hdf5.get(MODEL, getlink=True), h5py.HardLink):
        hdf5[MODEL].visititems(visit)  # follows no link that leads out of the file
    return state


def _place(key: str, uri: str) -> str:
    if found := parse_operator_key(key):
        return f"{MODEL}/relations/{found.relation}/operator/{found.side}/{found.parameter}"
    if entity_type := parse_global_key(key):
        return f"{MODEL}/entities/{entity_type}/global_embedding"
    raise FormatError(f"{uri}: the format has no place for a parameter named {key!r}")
