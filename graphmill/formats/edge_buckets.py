"""Bucket files: the edges between one lhs partition and one rhs partition, as PyTorch-BigGraph reads them.

    edges/train/
        edges_{lhs}_{rhs}.h5        one for EVERY bucket, empty ones included
            format_version = 1      root attribute, integer
            lhs, rel, rhs           integer [N]: index of the entity in its partition, number of the relation
            weight                  optional, float32 [N]
            lhsd_offsets            optional, integer [N + 1]: a featurized side; edge k has the features
            lhsd_data               integer [M]: lhsd_data[offsets[k]:offsets[k + 1]], and lhs[k] = -1;
                                    an edge of a type without features has none there, and its index in lhs
            rhsd_offsets, rhsd_data the same of the other side

Written: contiguous int32 (int64 on request), float32 weights. Read: any integer dtype, contiguous or
chunked. Source: docs/formats/pbg_v1.md.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.vocab import Bucket, Side

FORMAT_VERSION = 1
COLUMNS = ("lhs", "rel", "rhs")
WEIGHT = "weight"

Indices = npt.NDArray[np.int64] | npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Features:
    """Lists of features, one an edge: the k-th is `indices[offsets[k]:offsets[k + 1]]`."""

    offsets: npt.NDArray[np.int64]
    """[N + 1], from 0, never falling."""
    indices: Indices
    """[M] rows of the type's embeddings."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """[N] features of each edge; 0: the edge has an entity of its own."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of one bucket, column by column: int64 or int32 [N] each, and float32 [N] or no weights.

    Where a side is featurized, an edge with a list of features has -1 in the column of that side.
    """

    lhs: Indices
    rel: Indices
    rhs: Indices
    weight: npt.NDArray[np.float32] | None = None
    lhs_features: Features | None = None
    rhs_features: Features | None = None

    def __len__(self) -> int:
        return len(self.lhs)

    def features(self, side: Side) -> Features | None:
        """The lists of features on one side, if it is featurized."""
        return self.lhs_features if side is Side.LHS else self.rhs_features


def bucket_uri(edge_path: str, bucket: Bucket) -> str:
    """The file of `bucket` in the folder `edge_path`."""
    return storage.join(edge_path, f"edges_{bucket.lhs}_{bucket.rhs}.h5")


class BucketWriter:
    """Fills the datasets of a new bucket file from the front."""

    def __init__(
        self,
        hdf5: h5py.File,
        uri: str,
        num_edges: int,
        index_dtype: npt.DTypeLike,
        weighted: bool,
        num_features: Mapping[Side, int],
    ):
        self._uri = uri
        self._num_edges = num_edges
        self._num_written = 0
        hdf5.attrs["format_version"] = FORMAT_VERSION
        dtypes = dict.fromkeys(COLUMNS, np.dtype(index_dtype))
        if weighted:
            dtypes[WEIGHT] = np.dtype(np.float32)
        # Without chunks a dataset is contiguous; modification times would make the bytes differ.
        self._datasets = {
            column: hdf5.create_dataset(column, shape=(num_edges,), dtype=dtype, track_times=False)
            for column, dtype in dtypes.items()
        }
        self._features = {
            side: _FeaturesWriter(hdf5, uri, side, num_edges, num, index_dtype)
            for side, num in num_features.items()
        }

    def append(self, edges: Edges) -> None:
        """Write `edges` after those written so far.

        Raises:
            FormatError: the columns differ in length, weights are missing or unexpected, there are more
                edges than announced, or a value does not fit.
        """
        if (edges.weight is not None) != (WEIGHT in self._datasets):
            found = "without weights" if edges.weight is None else "with weights"
            raise FormatError(f"{self._uri}: edges {found} appended to a bucket that is not so")
        stop = self._num_written + len(edges)
        if stop > self._num_edges:
            raise FormatError(f"{self._uri}: expected {self._num_edges} edges, found at least {stop}")
        for column, dataset in self._datasets.items():
            values = getattr(edges, column)
            if len(values) != len(edges):
                raise FormatError(
                    f"{self._uri}: lengths differ: lhs has {len(edges)}, {column} {len(values)}"
                )
            if len(values):
                if column != WEIGHT:
                    has_features = column in self._features
                    _check_fits(values, dataset.dtype, column, self._uri, -1 if has_features else 0)
                dataset[self._num_written : stop] = values
        for side in Side:
            features, writer = edges.features(side), self._features.get(side)
            if (features is None) != (writer is None):
                raise FormatError(
                    f"{self._uri}: {side} features were announced and are missing, or not expected"
                )
            if features is not None and writer is not None:
                writer.append(features, len(edges), self._num_written)
        self._num_written = stop

    def check_full(self) -> None:
        """Refuse to end with fewer edges or features than announced."""
        for writer in self._features.values():
            writer.check_full()
        if self._num_written != self._num_edges:
            raise FormatError(f"{self._uri}: expected {self._num_edges} edges, found {self._num_written}")


class _FeaturesWriter:
    """Fills the two datasets of a featurized side from the front."""

    def __init__(
        self, hdf5: h5py.File, uri: str, side: Side, num_edges: int, num_features: int, dtype: npt.DTypeLike
    ):
        self._uri, self._side, self._num_features, self._num_written = uri, side, num_features, 0
        self._offsets = hdf5.create_dataset(
            offsets_name(side), shape=(num_edges + 1,), dtype=np.int64, track_times=False
        )
        self._indices = hdf5.create_dataset(
            features_name(side), shape=(num_features,), dtype=np.dtype(dtype), track_times=False
        )

    def append(self, features: Features, num_edges: int, first_edge: int) -> None:
        stop = self._num_written + len(features.indices)
        if len(features.offsets) != num_edges + 1 or features.offsets[-1] != len(features.indices):
            raise FormatError(f"{self._uri}: {self._side} features: their offsets do not fit the edges")
        if stop > self._num_features:
            raise FormatError(
                f"{self._uri}: expected {self._num_features} {self._side} features, found at least {stop}"
            )
        self._offsets[first_edge : first_edge + num_edges + 1] = features.offsets + self._num_written
        if len(features.indices):
            _check_fits(features.indices, self._indices.dtype, features_name(self._side), self._uri)
            self._indices[self._num_written : stop] = features.indices
        self._num_written = stop

    def check_full(self) -> None:
        if self._num_written != self._num_features:
            raise FormatError(
                f"{self._uri}: expected {self._num_features} {self._side} features, found {self._num_written}"
            )


@contextmanager
def new_bucket(
    edge_path: str,
    bucket: Bucket,
    num_edges: int,
    *,
    index_dtype: npt.DTypeLike = np.int32,
    weighted: bool = False,
    num_features: Mapping[Side, int] | None = None,
) -> Iterator[BucketWriter]:
    """A new bucket file of `num_edges` edges, to be appended within the block; atomic.

    `num_features` names the featurized sides, and how many features all their lists have together.
    """
    uri = bucket_uri(edge_path, bucket)
    with storage.create_hdf5(uri) as hdf5:
        writer = BucketWriter(hdf5, uri, num_edges, index_dtype, weighted, num_features or {})
        yield writer
        writer.check_full()


def write_bucket(edge_path: str, bucket: Bucket, edges: Edges) -> None:
    """Write a whole bucket: int32, or int64 where a value asks for it."""
    largest = max(int(getattr(edges, column).max(initial=0)) for column in COLUMNS)
    index_dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    features = {side: found for side in Side if (found := edges.features(side)) is not None}
    if any(int(each.indices.max(initial=0)) > np.iinfo(np.int32).max for each in features.values()):
        index_dtype = np.int64
    with new_bucket(
        edge_path,
        bucket,
        len(edges),
        index_dtype=index_dtype,
        weighted=edges.weight is not None,
        num_features={side: len(each.indices) for side, each in features.items()},
    ) as writer:
        writer.append(edges)


def count_edges(edge_path: str, bucket: Bucket) -> int:
    """Number of edges in the bucket."""
    with _open_bucket(bucket_uri(edge_path, bucket)) as datasets:
        return len(datasets["lhs"])


def has_weights(edge_path: str, bucket: Bucket) -> bool:
    """Whether the bucket's edges have weights."""
    with _open_bucket(bucket_uri(edge_path, bucket)) as datasets:
        return WEIGHT in datasets


def read_bucket(
    edge_path: str, bucket: Bucket, start: int = 0, stop: int | None = None, *, takes_features: bool = False
) -> Edges:
    """The edges [start, stop) of the bucket as int64 (weights float32); cut like a Python slice.

    Who does not say that it takes lists of features gets none: -1 would pass for an index.

    Raises:
        FormatError: the bucket is missing, or is not what docs/formats/pbg_v1.md says; or it has lists of
            features, and they are not expected.
    """
    uri = bucket_uri(edge_path, bucket)
    with _open_bucket(uri) as datasets:
        for side in Side:
            if offsets_name(side) in datasets and not takes_features:
                raise FormatError(
                    f"{uri}: its {side} side has lists of features ({offsets_name(side)}), expected an "
                    "index for every edge: featurized entity types are not supported here"
                )
        first, end, _ = slice(start, stop).indices(len(datasets["lhs"]))
        rows = slice(first, max(first, end))
        weight = _read(datasets[WEIGHT], rows, np.float32) if WEIGHT in datasets else None
        lhs, rel, rhs = (_read(datasets[column], rows, np.int64) for column in COLUMNS)
        features = {side: _read_features(datasets, side, rows, uri) for side in Side}
        edges = Edges(lhs, rel, rhs, weight, features[Side.LHS], features[Side.RHS])
    for column in COLUMNS:
        found = edges.features(Side(column)) if column in tuple(Side) else None
        values = getattr(edges, column)
        if found is not None:
            values = np.where((values == -1) & (found.counts > 0), 0, values)
        _check_not_negative(values, column, uri, rows.start)
    if weight is not None and not np.isfinite(weight).all():
        row = int(np.flatnonzero(~np.isfinite(weight))[0])
        raise FormatError(f"{uri}: {WEIGHT}[{rows.start + row}] is {weight[row]}; expected a finite number")
    return edges


def check_indices(
    edges: Edges, uri: str, num_lhs: int, num_rhs: int, num_rel: int, first_row: int = 0
) -> None:
    """Check that every edge points at an entity and a relation that exist.

    Args:
        edges: as read from the bucket.
        uri: the bucket file, for the message.
        num_lhs: rows of the lhs partition (the largest of its types).
        num_rhs: rows of the rhs partition.
        num_rel: relations.
        first_row: row of the file that `edges` starts at.

    Raises:
        FormatError: an index is out of range.
    """
    for column, limit in zip(COLUMNS, (num_lhs, num_rel, num_rhs), strict=True):
        values = getattr(edges, column)
        if len(values) and int(values.max()) >= limit:
            row = int(np.flatnonzero(values >= limit)[0])
            raise FormatError(
                f"{uri}: {column}[{first_row + row}] is {values[row]}; expected less than {limit}: "
                "the bucket and the counts beside it are not from the same run"
            )
    for side, limit in ((Side.LHS, num_lhs), (Side.RHS, num_rhs)):
        features = edges.features(side)
        if features is not None and int(features.indices.max(initial=-1)) >= limit:
            raise FormatError(
                f"{uri}: {features_name(side)} holds {features.indices.max()}; expected less than {limit}"
            )


def offsets_name(side: Side) -> str:
    """The dataset that says where each edge's features begin."""
    return f"{side}d_offsets"


def features_name(side: Side) -> str:
    """The dataset of all edges' features."""
    return f"{side}d_data"


def _read_features(
    datasets: Mapping[str, h5py.Dataset], side: Side, rows: slice, uri: str
) -> Features | None:
    """The lists of features of some rows.

    Raises:
        FormatError: the offsets fall, or do not lie in the list of features.
    """
    if offsets_name(side) not in datasets:
        return None
    offsets = _read(datasets[offsets_name(side)], slice(rows.start, rows.stop + 1), np.int64)
    num_features = len(datasets[features_name(side)])
    first = 0 if rows.start == 0 else int(offsets[0])
    if (
        int(offsets[0]) != first
        or (np.diff(offsets) < 0).any()
        or not 0 <= first <= offsets[-1] <= num_features
    ):
        raise FormatError(
            f"{uri}: {offsets_name(side)}: expected offsets from 0 that never fall, up to {num_features}"
        )
    indices = _read(datasets[features_name(side)], slice(first, int(offsets[-1])), np.int64)
    _check_not_negative(indices, features_name(side), uri, first)
    return Features(offsets - first, indices)


@contextmanager
def _open_bucket(uri: str) -> Iterator[dict[str, h5py.Dataset]]:
    """The datasets of the bucket file by name, checked; `weight` only where there is one."""
    try:
        with storage.open_hdf5(uri) as hdf5:
            yield _checked_datasets(hdf5, uri)
    except NotFoundError as error:
        raise FormatError(
            f"{uri}: there is no such bucket; every bucket must exist, an empty one with datasets of length 0"
        ) from error
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:  # h5py, of damage inside
        raise FormatError(f"{uri}: the file is damaged: {error}") from error


def _checked_datasets(hdf5: h5py.File, uri: str) -> dict[str, h5py.Dataset]:
    version = hdf5.attrs.get("format_version")
    if not np.array_equal(version, FORMAT_VERSION):
        raise FormatError(
            f"{uri}: attribute 'format_version' is {version}; this reader knows {FORMAT_VERSION}"
        )
    datasets = {column: _checked_dataset(hdf5, column, "iu", uri) for column in COLUMNS}
    if WEIGHT in hdf5:
        datasets[WEIGHT] = _checked_dataset(hdf5, WEIGHT, "iuf", uri)
    lengths = {column: len(dataset) for column, dataset in datasets.items()}
    for side in Side:
        names = (offsets_name(side), features_name(side))
        if any(name in hdf5 for name in names):
            datasets |= {name: _checked_dataset(hdf5, name, "iu", uri) for name in names}
            lengths[names[0]] = len(datasets[names[0]]) - 1
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{column} has {length}" for column, length in lengths.items())
        raise FormatError(f"{uri}: expected datasets of one length, found: {found}")
    return datasets


def _checked_dataset(hdf5: h5py.File, column: str, kinds: str, uri: str) -> h5py.Dataset:
    # Only what lies in this very file: links and external storage could name any other file.
    link: Any = hdf5.get(column, getlink=True)
    dataset: Any = hdf5[column] if isinstance(link, h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise FormatError(f"{uri}: expected a dataset {column!r} in the file, found none")
    if dataset.ndim != 1 or dataset.dtype.kind not in kinds:
        kind = "numbers" if "f" in kinds else "integers"
        raise FormatError(
            f"{uri}: {column!r}: expected {kind} in one dimension, found {dataset.dtype} {dataset.shape}"
        )
    return dataset


def _read(dataset: h5py.Dataset, rows: slice, dtype: npt.DTypeLike) -> Any:
    values = np.empty(rows.stop - rows.start, dtype)
    if len(values):
        dataset.read_direct(values, rows)  # HDF5 converts on the way
    return values


def _check_not_negative(values: Indices, column: str, uri: str, first_row: int, least: int = 0) -> None:
    if len(values) and int(values.min()) < least:
        row = int(np.flatnonzero(values < least)[0])
        raise FormatError(
            f"{uri}: {column}[{first_row + row}] is {values[row]}; expected 0 or more "
            "(-1 stands for a list of features, and is allowed where the edge has one)"
        )


def _check_fits(values: Indices, dtype: np.dtype[Any], column: str, uri: str, least: int = 0) -> None:
    _check_not_negative(values, column, uri, 0, least)
    if int(values.max()) > np.iinfo(dtype).max:  # HDF5 would clip it without a word
        raise FormatError(f"{uri}: {column}: {values.max()} does not fit {dtype}; ask for int64")
