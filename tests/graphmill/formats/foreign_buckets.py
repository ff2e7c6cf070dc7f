"""Bucket files of other writers, good and bad."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket

BUCKET = Bucket(1, 2)
URI = "edges_1_2.h5"


def foreign(tmp_path: Path, change: Callable[[h5py.File], None]) -> str:
    """The folder of a bucket of four edges, changed; h5py alone wrote it."""
    with h5py.File(tmp_path / URI, "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        for column in edge_buckets.COLUMNS:
            hdf5[column] = np.arange(4)
        change(hdf5)
    return str(tmp_path)


def replaced(column: str, values: object) -> Callable[[h5py.File], None]:
    """The change that puts `values` in the place of a dataset."""

    def change(hdf5: h5py.File) -> None:
        hdf5.pop(column, None)
        hdf5[column] = values

    return change
