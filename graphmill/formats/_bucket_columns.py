"""One column of a bucket file: a one-dimensional dataset, checked before reading and writing."""

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError
from graphmill.formats._hdf5 import check_stored

Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]


def checked_dataset(hdf5: h5py.File, column: str, kinds: str, uri: str) -> h5py.Dataset:
    """The dataset `column`, whose dtype is one of `kinds`.

    Raises:
        FormatError: there is none in the file itself, or it is of another shape or dtype.
    """
    # Only a dataset of this file: links and external storage could name any other file.
    link: Any = hdf5.get(column, getlink=True)
    dataset: Any = hdf5[column] if isinstance(link, h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise FormatError(f"{uri}: expected a dataset {column!r} in the file, found none")
    if dataset.ndim != 1 or dataset.dtype.kind not in kinds:
        kind = "numbers" if "f" in kinds else "integers"
        raise FormatError(
            f"{uri}: {column!r}: expected {kind} in one dimension, found {dataset.dtype} {dataset.shape}"
        )
    check_stored(dataset, uri)
    return dataset


def read_rows(dataset: h5py.Dataset, rows: slice, dtype: npt.DTypeLike) -> Any:
    """Rows [rows.start, rows.stop) as an array of `dtype`."""
    values = np.empty(rows.stop - rows.start, dtype)
    if len(values):
        dataset.read_direct(values, rows)  # HDF5 converts on the way
    return values


def check_not_negative(values: Indices, column: str, uri: str, first_row: int, least: int = 0) -> None:
    """Refuse values below `least`; `first_row` is the row of the first value in the file."""
    if len(values) and int(values.min()) < least:
        row = int(np.flatnonzero(values < least)[0])
        raise FormatError(
            f"{uri}: {column}[{first_row + row}] is {values[row]}; expected 0 or more "
            "(-1 stands for a list of features, and is allowed where the edge has one)"
        )


def check_fits(values: Indices, dtype: np.dtype[Any], column: str, uri: str, least: int = 0) -> None:
    """Refuse values that `dtype` cannot hold, or below `least`."""
    check_not_negative(values, column, uri, 0, least)
    if int(values.max()) > np.iinfo(dtype).max:  # HDF5 would clip it silently
        raise FormatError(f"{uri}: {column}: {values.max()} does not fit {dtype}; ask for int64")
