"""Reads all rows of a bucket in the order of the raw rows, also rows that are no edges."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.edge_buckets.files import bucket_uri
from graphmill.formats.edge_buckets.origins import (
    LEFT_OUT_ROW,
    LEFT_OUT_STARTS,
    ORIGIN,
    BucketOrigins,
    left_out_name,
    read_bucket_origins,
)
from graphmill.formats.hdf5 import checked_dataset, open_checked, read_rows
from graphmill.vocab import Bucket


class AllRows:
    """All rows of an open bucket whose origins are known; a row's position counts left-out rows too.

    Attributes:
        uri: The bucket file.
        origins: The raw files of the rows.
        starts: int64 [R + 1], position of the first row of each file.
    """

    def __init__(self, hdf5: h5py.File, uri: str, columns: Sequence[str]) -> None:
        self.uri = uri
        origins = read_bucket_origins(hdf5, uri)
        if origins is None:
            raise FormatError(f"{uri}: expected a dataset {ORIGIN!r}, which says the rows' raw files")
        self.origins: BucketOrigins = origins
        self.starts = origins.starts + origins.left_out_starts
        kinds = {name: "iuf" if name == "weight" else "iu" for name in columns}
        self._edges = {name: checked_dataset(hdf5, name, kind, uri) for name, kind in kinds.items()}
        self._left_out: dict[str, h5py.Dataset] = {}
        self._rows: h5py.Dataset | None = None
        if LEFT_OUT_STARTS in hdf5:
            self._rows = checked_dataset(hdf5, LEFT_OUT_ROW, "iu", uri)
            self._left_out = {
                name: checked_dataset(hdf5, left_out_name(name), kind, uri) for name, kind in kinds.items()
            }
        num_edges, num_left_out = int(origins.starts[-1]), int(origins.left_out_starts[-1])
        lengths = {len(edge) for edge in self._edges.values()}
        if lengths != {num_edges} or any(len(dataset) != num_left_out for dataset in self._left_out.values()):
            raise FormatError(f"{uri}: expected datasets of {num_edges} edges, {num_left_out} left out")

    def read(self, start: int, stop: int, column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return one column of the rows at the positions [start, stop)."""
        first, last, inside = self._left_out_within(start, stop)
        edges = read_rows(self._edges[column], start - first, stop - last, dtype)
        if first == last:
            return np.asarray(edges)
        values = np.empty(stop - start, dtype)
        is_edge = np.ones(stop - start, bool)
        is_edge[inside] = False
        values[is_edge] = edges
        values[inside] = read_rows(self._left_out[column], first, last, dtype)
        return values

    def are_edges(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows at the positions [start, stop): those that were not left out."""
        is_edge = np.ones(stop - start, bool)
        is_edge[self._left_out_within(start, stop)[2]] = False
        return is_edge

    def read_edges(self, start: int, stop: int, column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return one column of the edges [start, stop), without the rows that were left out."""
        return np.asarray(read_rows(self._edges[column], start, stop, dtype))

    def _left_out_within(self, start: int, stop: int) -> tuple[int, int, npt.NDArray[np.int64]]:
        """Return the left-out rows [first, last) at these positions, and their positions from `start` on."""
        if self._rows is None:
            return 0, 0, np.zeros(0, np.int64)
        first = bisect_left(self._rows, start, key=int)
        some: npt.NDArray[np.int64] = read_rows(
            self._rows, first, min(len(self._rows), first + stop - start), np.int64
        )
        inside = some[: np.searchsorted(some, stop)] - start
        return first, first + len(inside), inside


@contextmanager
def open_all_rows(edge_path: str, bucket: Bucket, columns: Sequence[str]) -> Iterator[AllRows]:
    """Open a bucket to read these columns of all its rows; the whole file is compared with its checksum."""
    uri = bucket_uri(edge_path, bucket)
    with open_checked(uri, storage.manifest_of(edge_path)) as hdf5:
        yield AllRows(hdf5, uri, columns)
