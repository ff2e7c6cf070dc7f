"""HDF5 files of a version: embeddings of a partition, and the parameters that belong to no entity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill import storage
from graphmill.formats.pbg_checkpoint import hdf5 as content
from graphmill.formats.pbg_checkpoint.hdf5 import DatasetRows, Floats, Iteration
from graphmill.formats.pbg_checkpoint.names import embeddings_uri, manifest_of, model_uri
from graphmill.storage import Checksums
from graphmill.vocab import Partition

if TYPE_CHECKING:
    from torch import Tensor


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
) -> None:
    """Write one partition: embeddings [count, D], and the state_dict() of the optimizer if there is one.

    With `shape`, (count, D) of all rows, the embeddings come in batches [n, D]. The checksum of the file is
    added to `checksums`.

    Raises:
        FormatError: the batches have fewer or more rows than `shape`.
    """
    if shape is None:
        whole = np.asarray(embeddings)
        shape, embeddings = (whole.shape[0], whole.shape[1]), [whole]
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with storage.create_hdf5(uri, checksums) as hdf5:
        content.write_attributes(hdf5, config, iteration)
        content.write_rows(hdf5, shape, embeddings, uri)
        content.write_optimizer(hdf5, optimizer_state)


def read_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> tuple[Floats, dict[str, Any] | None]:
    """One partition: embeddings [count, D] float32, and its optimizer's state or None.

    Raises:
        NotFoundError: the version has no such file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        rows = DatasetRows(content.embeddings_dataset(hdf5, uri))
        return rows.read(0, rows.shape[0]), content.read_optimizer(hdf5, uri)


def read_optimizer_state(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> dict[str, Any] | None:
    """The state of one partition's optimizer, or None; reads no embeddings and compares no checksum."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri) as hdf5:
        return content.read_optimizer(hdf5, uri)


@contextmanager
def open_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int, *, whole: bool = False
) -> Iterator[DatasetRows]:
    """One partition's embeddings, to be read piece by piece within the block.

    With `whole`, for a caller that reads all rows, the file is compared with its checksum.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with content.open_checked(uri, manifest_of(checkpoint_path, version) if whole else None) as hdf5:
        yield DatasetRows(content.embeddings_dataset(hdf5, uri))


def shape_of(checkpoint_path: str, entity_type: str, partition: Partition, version: int) -> tuple[int, int]:
    """(count, D) of one partition's embeddings."""
    with open_embeddings(checkpoint_path, entity_type, partition, version) as rows:
        return rows.shape


def iter_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int, batch_rows: int
) -> Iterator[Floats]:
    """One partition's embeddings in order, [<= batch_rows, D] at a time."""
    with open_embeddings(checkpoint_path, entity_type, partition, version, whole=True) as rows:
        for start in range(0, rows.shape[0], batch_rows):
            yield rows.read(start, start + batch_rows)


def write_model(
    checkpoint_path: str,
    version: int,
    state: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    iteration: Iteration | None,
    checksums: Checksums | None = None,
) -> None:
    """Write the parameters that belong to no entity, by `state_dict_key` ("rhs_operators.0.real").

    The checksum of the file is added to `checksums`.
    """
    uri = model_uri(checkpoint_path, version)
    with storage.create_hdf5(uri, checksums) as hdf5:
        content.write_attributes(hdf5, config, iteration)
        content.write_parameters(hdf5, state, uri)
        content.write_optimizer(hdf5, optimizer_state)


def read_model(
    checkpoint_path: str, version: int
) -> tuple[dict[str, Tensor], dict[str, Any] | None, Iteration | None]:
    """The parameters by `state_dict_key`, float32; the optimizer's state; the iteration that ended there.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = model_uri(checkpoint_path, version)
    with content.open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        return (
            content.read_parameters(hdf5, uri),
            content.read_optimizer(hdf5, uri),
            content.read_iteration(hdf5, uri),
        )


def read_model_iteration(checkpoint_path: str, version: int) -> Iteration | None:
    """The iteration that the version ends, or None where its model file does not say."""
    uri = model_uri(checkpoint_path, version)
    with content.open_checked(uri) as hdf5:
        return content.read_iteration(hdf5, uri)


def read_global_embedding(checkpoint_path: str, entity_type: str, version: int) -> Floats | None:
    """The vector [D] float32 that is added to every embedding of a type, or None.

    Raises:
        NotFoundError: the version has no model file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = model_uri(checkpoint_path, version)
    with content.open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        return content.read_global_embedding(hdf5, entity_type, uri)
