"""Origins of the edges of buckets: the raw file of every row, and the rows that are no edges.

    edges/train/
        origins.json            the raw files of the run in reading order, and what it read them with
        edges_{lhs}_{rhs}.h5    origin, origin_starts, left_out_...: beside the columns of edge_buckets

Rows are left out that would be edges without other rows, such as the second of two equal edges. A later run
can so take out the rows of some files, and has the same edges as if it had read all other files anew.
Source: docs/formats/pbg_v1.md.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, TypeAdapter

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.edge_buckets.files import bucket_uri
from graphmill.formats.hdf5 import checked_dataset, new_dataset, open_checked, read_rows
from graphmill.sorted_arrays import joined_ranges
from graphmill.storage import Checksums, FileStatus
from graphmill.storage.as_json import Int32, Int64, read_as
from graphmill.vocab import Bucket

ORIGINS = "origins.json"
FORMAT_VERSION = 1

ORIGIN = "origin"
STARTS = "origin_starts"
LEFT_OUT_STARTS = "left_out_starts"
LEFT_OUT_ROW = "left_out_row"


class SourceFile(BaseModel):
    """A raw file of a run, and what it gave."""

    uri: str
    size_bytes: int
    mtime_ns: int | None = None
    """Nanoseconds since 1970; None: the table's log names the file, which never changes."""
    digest: str
    """Digest of all that decides which rows the file gives: the values above, the settings of its table."""
    removes: bool = False
    """Whether its rows take out edges: no bucket has them, and a later run reads them anew."""
    num_rows: int = 0
    num_edges: int = 0
    """Rows that became edges, or were left out because of other rows."""
    num_self_loops: int = 0
    """Dropped self-loops."""
    num_bad: dict[str, int] = Field(default_factory=dict)
    """Bad rows by reason."""
    num_unknown: dict[str, int] = Field(default_factory=dict)
    """Bad rows by unknown relation."""
    integer_columns: list[str] = Field(default_factory=list)
    """Columns of ids that are integers in the file."""


class Origins(BaseModel):
    """The raw files of a run."""

    format_version: int = FORMAT_VERSION
    settings: dict[str, Any]
    """Settings that decide how a row becomes an edge."""
    entities: str
    """Digest of the entity index that the edges belong to."""
    files: list[SourceFile]
    """In reading order."""
    added: list[int] | None = None
    """Numbers of the files that the earlier run did not have; None: the run had no earlier edges."""


@dataclass(frozen=True, eq=False)
class BucketOrigins:
    """The raw files of the rows of one bucket."""

    origin: Int32
    """[R] numbers of files, ascending."""
    starts: Int64
    """[R + 1] first edge of each file."""
    left_out_starts: Int64
    """[R + 1] the same of the rows that were left out."""


def write_origins(edge_path: str, origins: Origins, checksums: Checksums) -> None:
    """Write origins.json into a folder of buckets; add its checksum to `checksums`."""
    storage.write_text(_uri(edge_path), origins.model_dump_json() + "\n", checksums)


def read_origins(edge_path: str) -> Origins | None:
    """Read origins.json; None if the run that wrote the buckets did not write it."""
    uri = _uri(edge_path)
    try:
        content = storage.read_compared(uri, storage.manifest_of(edge_path))
    except NotFoundError:
        return None
    origins = read_as(TypeAdapter(Origins), content, uri, "the raw files of a run", FORMAT_VERSION)
    if any(not 0 <= number < len(origins.files) for number in origins.added or ()):
        raise FormatError(f"{uri}: added: expected numbers of the {len(origins.files)} files")
    return origins


def has_added(edge_path: str) -> bool:
    """Tell whether the run took edges from an earlier run, so that `added_rows` tells new from old ones."""
    return _added(edge_path) is not None


def added_rows(edge_path: str, bucket: Bucket) -> Int64:
    """Rows of the bucket whose files the earlier run did not have: int64 [K, 2], [first, past last) each.

    The ranges are ascending and do not touch. There are none if the run had no earlier edges.
    """
    added = _added(edge_path)
    if not added:
        return np.zeros((0, 2), np.int64)
    with open_checked(bucket_uri(edge_path, bucket)) as hdf5:
        origins = _read_bucket_origins(hdf5, bucket_uri(edge_path, bucket))
    is_added = np.isin(origins.origin, added) & (np.diff(origins.starts) > 0)
    return joined_ranges(origins.starts[:-1][is_added], origins.starts[1:][is_added])


def _read_bucket_origins(hdf5: h5py.File, uri: str) -> BucketOrigins:
    """Read the origins of an open bucket."""
    if ORIGIN not in hdf5:
        raise FormatError(f"{uri}: expected a dataset {ORIGIN!r}, which says the rows' raw files, found none")
    origin = _all(hdf5, ORIGIN, np.int32, uri)
    starts = _all(hdf5, STARTS, np.int64, uri)
    num_edges = len(checked_dataset(hdf5, "lhs", "iu", uri))
    has_left_out = LEFT_OUT_STARTS in hdf5
    left_out = _all(hdf5, LEFT_OUT_STARTS, np.int64, uri) if has_left_out else np.zeros_like(starts)
    num_left_out = len(checked_dataset(hdf5, LEFT_OUT_ROW, "iu", uri)) if has_left_out else 0
    if (np.diff(origin) <= 0).any() or (origin < 0).any():
        raise FormatError(f"{uri}: {ORIGIN}: expected ascending numbers of files")
    for name, firsts, last in ((STARTS, starts, num_edges), (LEFT_OUT_STARTS, left_out, num_left_out)):
        ends = len(firsts) and firsts[0] == 0 and firsts[-1] == last
        if len(firsts) != len(origin) + 1 or not ends or (np.diff(firsts) < 0).any():
            raise FormatError(
                f"{uri}: {name}: expected {len(origin) + 1} starts that never fall, from 0 to {last}"
            )
    return BucketOrigins(origin, starts, left_out)


def write_bucket_origins(hdf5: h5py.File, origins: BucketOrigins, *, has_left_out: bool) -> None:
    """Write the origins of a new bucket, whose rows are written."""
    values: dict[str, Any] = {
        ORIGIN: origins.origin.astype(np.int32),
        STARTS: origins.starts.astype(np.int64),
    }
    if has_left_out:
        values[LEFT_OUT_STARTS] = origins.left_out_starts.astype(np.int64)
    for name, value in values.items():
        new_dataset(hdf5, name, value.shape, value.dtype)[:] = value


def left_out_name(column: str) -> str:
    """Name of the dataset of a column of the rows that were left out."""
    return f"left_out_{column}"


def left_out_dtypes(columns: Sequence[str], index_dtype: Any) -> dict[str, Any]:
    """Return the datasets of the rows that were left out, and their dtypes, for the columns of the edges."""
    return {
        **{left_out_name(column): np.float32 if column == "weight" else index_dtype for column in columns},
        LEFT_OUT_ROW: np.int64,
    }


def _all(hdf5: h5py.File, name: str, dtype: Any, uri: str) -> Any:
    dataset = checked_dataset(hdf5, name, "iu", uri)
    return read_rows(dataset, 0, len(dataset), dtype)


def _uri(edge_path: str) -> str:
    return storage.join(edge_path, ORIGINS)


def _added(edge_path: str) -> list[int] | None:
    status = storage.status(_uri(edge_path))
    return None if status is None else _read_added(edge_path, status)


@lru_cache(maxsize=64)
def _read_added(edge_path: str, _status: FileStatus) -> list[int] | None:
    """Numbers of the added files, kept until origins.json is another file."""
    origins = read_origins(edge_path)
    return None if origins is None else origins.added


class AllRows:
    """All rows of an open bucket whose origins are known; a row's position counts left-out rows too.

    Attributes:
        uri: The bucket file.
        origins: The raw files of the rows.
        starts: int64 [R + 1], position of the first row of each file.
    """

    def __init__(self, hdf5: h5py.File, uri: str, columns: Sequence[str]) -> None:
        self.uri = uri
        self.origins = origins = _read_bucket_origins(hdf5, uri)
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
