"""The embeddings of a partition, with the state of their optimizer.

embeddings_{type}_{part}.v{V}.h5    attributes and optimizer/state_dict: see hdf5
    embeddings                      float [count, D]
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.formats._hdf5 import DatasetWriter, checked_dataset, open_checked, read_rows
from graphmill.formats.pbg_checkpoint.hdf5 import Iteration, read_optimizer, write_attributes, write_optimizer
from graphmill.formats.pbg_checkpoint.names import embeddings_uri, manifest_of
from graphmill.storage import Checksums
from graphmill.vocab import Partition

Floats = npt.NDArray[np.float32]

_NAME = "embeddings"


class DatasetRows:
    """Rows of a dataset [count, D], read piece by piece."""

    def __init__(self, hdf5: h5py.File, uri: str) -> None:
        self._dataset = checked_dataset(hdf5, _NAME, "f", uri, num_dims=2)
        self.shape: tuple[int, int] = self._dataset.shape

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) as float32, whatever the file has."""
        rows: Floats = read_rows(self._dataset, start, min(stop, self.shape[0]), np.float32)
        return rows


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
        write_attributes(hdf5, config, iteration)
        writer = DatasetWriter(hdf5, uri, shape[0], {_NAME: np.float32}, shape[1:])
        writer.fill({_NAME: batch} for batch in embeddings)
        write_optimizer(hdf5, optimizer_state)


@contextmanager
def open_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int, *, whole: bool = False
) -> Iterator[DatasetRows]:
    """One partition's embeddings, to be read piece by piece within the block.

    With `whole`, for a caller that reads all rows, the file is compared with its checksum.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri, manifest_of(checkpoint_path, version) if whole else None) as hdf5:
        yield DatasetRows(hdf5, uri)


def read_embeddings(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> tuple[Floats, dict[str, Any] | None]:
    """One partition: embeddings [count, D] float32, and its optimizer's state or None.

    Raises:
        NotFoundError: the version has no such file.
        FormatError: the file does not follow the format, or has another checksum.
    """
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri, manifest_of(checkpoint_path, version)) as hdf5:
        rows = DatasetRows(hdf5, uri)
        return rows.read(0, rows.shape[0]), read_optimizer(hdf5, uri)


def read_optimizer_state(
    checkpoint_path: str, entity_type: str, partition: Partition, version: int
) -> dict[str, Any] | None:
    """The state of one partition's optimizer, or None; reads no embeddings and compares no checksum."""
    uri = embeddings_uri(checkpoint_path, entity_type, partition, version)
    with open_checked(uri) as hdf5:
        return read_optimizer(hdf5, uri)
