"""HDF5 files of a version: the embeddings of a partition, and the parameters that belong to no entity.

    embeddings_{type}_{part}.v{V}.h5, model.v{V}.h5
        attributes format_version, config/json, iteration/*   (a slash is part of an attribute's name)
        optimizer/state_dict        opaque V1 [bytes]: torch.save(optimizer.state_dict())
    embeddings_{type}_{part}.v{V}.h5
        embeddings                  float [count, D]
    model.v{V}.h5, each dataset with the attribute state_dict_key
        model/relations/{r}/operator/{side}/{parameter}     float
        model/entities/{type}/global_embedding              float [D]

The files may come from anybody: only tensors are unpickled. torch is imported where it is used: a process
that reads vectors alone, as in remap, starts a second earlier.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from graphmill import storage
from graphmill.checkpoints.checkpoint import Floats, Iteration, Rows
from graphmill.checkpoints.pbg.versions import MODEL, embeddings_uri, manifest_of, model_uri
from graphmill.checkpoints.states import checked_state
from graphmill.errors import FormatError
from graphmill.formats.hdf5 import (
    FORMAT_VERSION,
    DatasetWriter,
    check_dataset,
    checked_dataset,
    described,
    find_dataset,
    new_dataset,
    open_checked,
    read_rows,
    write_rows,
)
from graphmill.model.parameters import parse_global_key, parse_operator_key
from graphmill.storage import Checksums
from graphmill.vocab import Partition

if TYPE_CHECKING:
    from torch import Tensor

_EMBEDDINGS = "embeddings"
_OPTIMIZER = "optimizer/state_dict"
_OPAQUE = np.dtype("V1")
_KEY = "state_dict_key"


def _rows_of(hdf5: h5py.File, uri: str) -> Rows:
    """The rows of the dataset [count, D], float32 whatever the file has."""
    dataset = checked_dataset(hdf5, _EMBEDDINGS, "f", uri, num_dims=2)
    count = dataset.shape[0]
    return Rows(dataset.shape, lambda start, stop: read_rows(dataset, start, min(stop, count), np.float32))


def write_embeddings(
    checkpoint_path: str,
    entity_type: str,
    partition: Partition,
    version: int,
    embeddings: Floats | Iterable[Floats],
    optimizer_state: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    iteration: Iteration | None,
    checksums: Checksums | None = None,
    *,
    shape: tuple[int, int] | None = None,
    replication: int | None = None,
) -> None:
    """Write one partition: embeddings [count, D], and the state_dict() of the optimizer if there is one.

    With `shape`, (count, D) of all rows, the embeddings come in batches [n, D]. The checksum of the file is
    added to `checksums`. `replication` is the number of copies on HDFS (None: its default).
    """
    if shape is None:
        whole = np.asarray(embeddings)
        shape, embeddings = (whole.shape[0], whole.shape[1]), [whole]
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with storage.create_hdf5(uri, checksums, replication=replication) as hdf5:
        _write_attributes(hdf5, config, iteration)
        writer = DatasetWriter(hdf5, uri, shape[0], {_EMBEDDINGS: np.float32}, shape[1:])
        writer.fill({_EMBEDDINGS: batch} for batch in embeddings)
        _write_optimizer(hdf5, optimizer_state)


@contextmanager
def open_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int, *, whole: bool = False
) -> Iterator[Rows]:
    """Open a partition's embeddings, to be read piece by piece; `whole`: compare with the checksum."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri, manifest_of(checkpoint_path, version) if whole else None) as hdf5:
        yield _rows_of(hdf5, uri)


def read_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> tuple[Floats, dict[str, Any] | None]:
    """One partition: embeddings [count, D] float32, and its optimizer's state or None."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        rows = _rows_of(hdf5, uri)
        return rows.read(0, rows.shape[0]), _read_optimizer(hdf5, uri)


def read_optimizer_state(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> dict[str, Any] | None:
    """The state of one partition's optimizer, or None; reads no embeddings and compares no checksum."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri) as hdf5:
        return _read_optimizer(hdf5, uri)


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
    """
    uri = model_uri(checkpoint_path, version)
    with storage.create_hdf5(uri, checksums) as hdf5:
        _write_attributes(hdf5, config, iteration)
        hdf5.create_group(MODEL)  # PBG wants the group even if it is empty
        for key, parameter in state.items():
            values = parameter.detach().cpu().numpy()
            dataset = hdf5.create_dataset(_place(key, uri), data=values, track_times=False)
            dataset.attrs[_KEY] = key
        _write_optimizer(hdf5, optimizer_state)


def read_model(
    checkpoint_path: str, version: int
) -> tuple[dict[str, Tensor], dict[str, Any] | None, Iteration | None]:
    """The parameters by `state_dict_key`, float32; the optimizer's state; the iteration that ended there."""
    uri = model_uri(checkpoint_path, version)
    import torch

    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        parameters = {key: torch.from_numpy(values) for key, values in _read_parameters(hdf5, uri).items()}
        return parameters, _read_optimizer(hdf5, uri), _read_iteration(hdf5, uri)


def read_parameters(checkpoint_path: str, version: int, key: str | None = None) -> dict[str, Floats]:
    """The parameters by `state_dict_key`, float32, or that of one key; read without torch."""
    uri = model_uri(checkpoint_path, version)
    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        if key is None:
            return _read_parameters(hdf5, uri)
        dataset = find_dataset(hdf5, _place(key, uri), uri)
        return {} if dataset is None else dict([_parameter(dataset, uri)])


def read_model_iteration(checkpoint_path: str, version: int) -> Iteration | None:
    """The iteration that the version ends, or None where its model file does not say."""
    uri = model_uri(checkpoint_path, version)
    with open_checked(uri) as hdf5:
        return _read_iteration(hdf5, uri)


def _write_attributes(hdf5: h5py.File, config: Mapping[str, Any], iteration: Iteration | None) -> None:
    hdf5.attrs["format_version"] = FORMAT_VERSION
    hdf5.attrs["config/json"] = json.dumps(config, indent=4)
    for key, value in asdict(iteration).items() if iteration else ():
        hdf5.attrs[f"iteration/{key}"] = value


def _read_iteration(hdf5: h5py.File, uri: str) -> Iteration | None:
    attributes = {field.name: hdf5.attrs.get(f"iteration/{field.name}") for field in fields(Iteration)}
    if all(value is None for value in attributes.values()):
        return None
    try:
        integers = {name: int(value) for name, value in attributes.items() if name != "edge_path"}
    except (TypeError, ValueError) as error:
        raise FormatError(f"{uri}: expected seven attributes 'iteration/...', found {attributes}") from error
    return Iteration(edge_path=str(attributes["edge_path"]), **integers)


def _write_optimizer(hdf5: h5py.File, state: Mapping[str, Any] | None) -> None:
    if state is None:
        return
    import torch

    from graphmill.formats.torch_files.read import mapped

    def own(tensor: Tensor) -> Tensor:
        """Copy a view, of which torch.save() would write the whole storage."""
        on_host = tensor.detach().cpu()
        return on_host if on_host.untyped_storage().nbytes() == on_host.nbytes else on_host.clone()

    stream = io.BytesIO()
    torch.save(mapped(state, own), stream)
    opaque = np.frombuffer(stream.getbuffer(), dtype=_OPAQUE)
    write_rows(new_dataset(hdf5, _OPTIMIZER, opaque.shape, _OPAQUE), 0, opaque)


def _read_optimizer(hdf5: h5py.File, uri: str) -> dict[str, Any] | None:
    dataset = find_dataset(hdf5, _OPTIMIZER, uri)
    if dataset is None:
        return None
    where = f"{uri}: dataset {_OPTIMIZER!r}"
    if dataset.ndim != 1 or dataset.dtype != _OPAQUE:
        raise FormatError(f"{where}: expected bytes of the opaque type V1, found {described(dataset)}")
    from graphmill.formats.torch_files.read import load_bytes

    content = read_rows(dataset, 0, len(dataset), _OPAQUE)  # `dataset[...]` takes many times as long
    return checked_state(load_bytes(content.view(np.uint8), where), where)


def _read_parameters(hdf5: h5py.File, uri: str) -> dict[str, Floats]:
    """The parameters, float32, by state_dict_key; none without the group."""
    state: dict[str, Floats] = {}

    def visit(name: str, node: h5py.HLObject) -> None:
        if isinstance(node, h5py.Dataset):
            check_dataset(node, f"{MODEL}/{name}", uri)
            state.update([_parameter(node, uri)])

    if isinstance(hdf5.get(MODEL, getlink=True), h5py.HardLink):
        hdf5[MODEL].visititems(visit)  # follows no link that leads out of the file
    return state


def _parameter(dataset: h5py.Dataset, uri: str) -> tuple[str, Floats]:
    key = dataset.attrs.get(_KEY)
    if not isinstance(key, str) or dataset.dtype.kind != "f":
        raise FormatError(
            f"{uri}: dataset {dataset.name!r}: expected floats with an attribute {_KEY!r}, "
            f"found {described(dataset)} and {key}"
        )
    return key, np.asarray(dataset[...], np.float32)


def _place(key: str, uri: str) -> str:
    if operator := parse_operator_key(key):
        return f"{MODEL}/relations/{operator.relation}/operator/{operator.side}/{operator.parameter}"
    if entity_type := parse_global_key(key):
        return f"{MODEL}/entities/{entity_type}/global_embedding"
    raise FormatError(f"{uri}: the format has no place for a parameter named {key!r}")
