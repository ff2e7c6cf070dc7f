"""Lists of features in a bucket file: the edges of a side whose entity type is featurized.

        edges_{lhs}_{rhs}.h5        beside the columns of edge_buckets
            lhsd_offsets            integer [N + 1]: edge k has the features
            lhsd_data               integer [M]: lhsd_data[offsets[k]:offsets[k + 1]], and lhs[k] = -1; the
                                    list may be empty: its embedding is zero;
                                    an edge of a type without features has none there, and its index in lhs
            rhsd_offsets, rhsd_data the same of the other side

Written: contiguous, int64 offsets. Source: docs/formats/pbg_v1.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError
from graphmill.formats.hdf5 import DatasetWriter, check_least, new_dataset, read_rows
from graphmill.vocab import Side

Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]

_REMARK = " (-1 stands for a list of features)"


@dataclass(frozen=True, eq=False)
class Features:
    """Lists of features, one for each edge: the k-th is `indices[offsets[k]:offsets[k + 1]]`."""

    offsets: npt.NDArray[np.int64]
    """[N + 1], from 0, never falling."""
    indices: Indices
    """[M] rows of the type's embeddings."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """[N] features of each edge; 0: an empty list, or an entity of its own."""
        return np.diff(self.offsets)

    def largest(self, otherwise: Indices) -> Indices:
        """The largest feature of each edge [N], or the number that it has `otherwise`."""
        has_some = self.counts > 0
        values = otherwise.copy()
        values[has_some] = np.maximum.reduceat(self.indices, self.offsets[:-1][has_some])
        return values


def empty_lists(num_edges: int) -> Features:
    """Return a list without features for each edge."""
    return Features(np.zeros(num_edges + 1, np.int64), np.zeros(0, np.int64))


def offsets_name(side: Side) -> str:
    """Name of the dataset with the first feature of each edge."""
    return f"{side}d_offsets"


def features_name(side: Side) -> str:
    """Name of the dataset with the features of all edges."""
    return f"{side}d_data"


class FeaturesWriter:
    """Fills the two datasets of a featurized side from the front."""

    def __init__(self, hdf5: h5py.File, uri: str, side: Side, num_edges: int, num: int, dtype: npt.DTypeLike):
        self._uri, self._side = uri, side
        self._offsets = new_dataset(hdf5, offsets_name(side), (num_edges + 1,), np.int64)
        self.indices = DatasetWriter(hdf5, uri, num, {features_name(side): dtype}, rows=f"{side} features")

    def append(self, features: Features, num_edges: int, first_edge: int) -> None:
        """Write the lists of `num_edges` edges, the first of them edge `first_edge` of the bucket."""
        if len(features.offsets) != num_edges + 1 or features.offsets[-1] != len(features.indices):
            raise FormatError(f"{self._uri}: {self._side} features: their offsets do not fit the edges")
        ((name, data),) = self.indices.datasets.items()
        check_fits(features.indices, data.dtype, name, self._uri)
        if num_edges or len(self._offsets) == 1:  # HDF5 places what is written first: edges, then their lists
            self._offsets[first_edge : first_edge + num_edges + 1] = (
                features.offsets + self.indices.num_written
            )
            if not first_edge and len(data):
                data[-1:] = 0
        self.indices.append({name: features.indices})


def read_features(
    datasets: Mapping[str, h5py.Dataset], side: Side, start: int, stop: int, uri: str
) -> Features | None:
    """The lists of features of the edges [start, stop)."""
    if offsets_name(side) not in datasets:
        return None
    offsets = read_rows(datasets[offsets_name(side)], start, stop + 1, np.int64)
    num_features = len(datasets[features_name(side)])
    first = 0 if start == 0 else int(offsets[0])
    is_rising = int(offsets[0]) == first and (np.diff(offsets) >= 0).all()
    if not (is_rising and 0 <= first <= offsets[-1] <= num_features):
        raise FormatError(
            f"{uri}: {offsets_name(side)}: expected offsets from 0 that never fall, up to {num_features}"
        )
    indices = read_rows(datasets[features_name(side)], first, int(offsets[-1]), np.int64)
    check_not_negative(indices, features_name(side), uri, first)
    return Features(offsets - first, indices)


def check_not_negative(values: Indices, column: str, uri: str, first_row: int, least: int = 0) -> None:
    """Refuse indices below `least`; the first value is in row `first_row` of the column."""
    check_least(values, least, column, uri, first_row, _REMARK)


def check_fits(values: Indices, dtype: npt.DTypeLike, column: str, uri: str, least: int = 0) -> None:
    """Refuse indices that `dtype` cannot hold, or below `least`."""
    check_not_negative(values, column, uri, 0, least)
    if int(values.max(initial=0)) > np.iinfo(np.dtype(dtype)).max:  # HDF5 would clip it silently
        raise FormatError(f"{uri}: {column}: {values.max()} does not fit {np.dtype(dtype)}; ask for int64")
