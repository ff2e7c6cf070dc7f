"""Bucket files: the edges between one lhs partition and one rhs partition, as PyTorch-BigGraph reads them.

    edges/train/
        edges_{lhs}_{rhs}.h5        one for EVERY bucket, empty ones included
        removed_{lhs}_{rhs}.h5      optional, of a delta: edges that the earlier run had and this does not
        num_edges.json              optional: see files
        origins.json                optional: see origins

Written: contiguous int32 (int64 on request), float32 weights. Read: any integer dtype, contiguous or
chunked. Source: docs/formats/pbg_v1.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.edge_buckets.features import (
    Features,
    FeaturesWriter,
    Indices,
    check_fits,
    check_not_negative,
    empty_lists,
    features_name,
    offsets_name,
    read_features,
)
from graphmill.formats.edge_buckets.files import EDGES, find_loops, known_counts, write_loops
from graphmill.formats.edge_buckets.files import bucket_uri as bucket_uri
from graphmill.formats.edge_buckets.files import list_buckets as list_buckets
from graphmill.formats.edge_buckets.origins import (
    LEFT_OUT_ROW,
    BucketOrigins,
    left_out_dtypes,
    left_out_name,
    write_bucket_origins,
)
from graphmill.formats.hdf5 import FORMAT_VERSION, DatasetWriter, checked_dataset, open_checked, read_rows
from graphmill.formats.hdf5 import NewArray as NewArray
from graphmill.storage import ChecksumManifest, Checksums
from graphmill.storage.as_json import Int64
from graphmill.vocab import MAX_WEIGHT, Bucket, Side

COLUMNS = ("lhs", "rel", "rhs")
WEIGHT = "weight"


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


def folders(edge_root: str, entity_path: str | None = None) -> list[str]:
    """The folders of bucket files in `edge_root`, a split each; with `entity_path`, none of another graph.

    A folder is of another graph if its marker tells of other tables or settings than that of `entity_path`.
    """
    uris = [entry.uri for entry in storage.list_dir(edge_root) if entry.is_dir]
    uris = [uri for uri in uris if storage.exists(bucket_uri(uri, Bucket(0, 0)))]
    ours = None if entity_path is None else storage.read_marker(entity_path)
    return [uri for uri in uris if ours is None or _marker(uri, ours) == ours]


def _marker(folder: str, otherwise: dict[str, Any]) -> dict[str, Any]:
    """Settings and inputs of the folder, as its marker says; `otherwise` without a marker."""
    try:
        return storage.read_marker(folder) or otherwise
    except FormatError:  # of another program
        return {}


class BucketWriter:
    """Fills the datasets of a new bucket file from the front."""

    def __init__(
        self,
        uri: str,
        columns: DatasetWriter,
        features: Mapping[Side, FeaturesWriter],
        left_out: DatasetWriter | None,
    ) -> None:
        self.uri, self._columns, self._features, self._left_out = uri, columns, features, left_out
        self.origins: BucketOrigins | None = None  # the raw files of the rows, to be written at the end
        self._loops: set[int] = set()

    def append(self, edges: Edges) -> None:
        """Write `edges` after those written so far."""
        columns = {name: getattr(edges, name) for name in self._columns.datasets}
        if (edges.weight is not None) != (WEIGHT in columns):
            kind = "without weights" if edges.weight is None else "with weights"
            raise FormatError(f"{self.uri}: edges {kind} appended to a bucket that is not so")
        for name, values in columns.items():
            if len(values) != len(edges):
                raise FormatError(f"{self.uri}: lengths differ: lhs has {len(edges)}, {name} {len(values)}")
            if name != WEIGHT:
                dtype = self._columns.datasets[name].dtype
                check_fits(values, dtype, name, self.uri, -1 if name in self._features else 0)
        self._loops |= set(find_loops(edges.lhs, edges.rel, edges.rhs).tolist())
        first_edge = self._columns.num_written
        self._columns.append(columns)
        for side in Side:
            features, writer = edges.features(side), self._features.get(side)
            if (features is None) != (writer is None):
                raise FormatError(f"{self.uri}: {side} features were announced and not given, or unexpected")
            if features is not None and writer is not None:
                writer.append(features, len(edges), first_edge)

    def append_left_out(self, edges: Edges, rows: Int64) -> None:
        """Write duplicates and removed edges, which are no edges; `rows` are their positions."""
        if self._left_out is None:
            raise FormatError(f"{self.uri}: rows were left out of a bucket that is to have none")
        columns = {left_out_name(name): getattr(edges, name) for name in self._columns.datasets}
        self._left_out.append({**columns, LEFT_OUT_ROW: rows})

    def finish(self, hdf5: h5py.File) -> None:
        """Check that all announced rows are there, and write what is told of them."""
        parts = [self._columns, *(feature.indices for feature in self._features.values()), self._left_out]
        for part in filter(None, parts):
            part.check_full()
        write_loops(hdf5, self._loops)
        if self.origins is not None:
            write_bucket_origins(hdf5, self.origins, has_left_out=self._left_out is not None)


@contextmanager
def new_bucket(
    edge_path: str,
    bucket: Bucket,
    num_edges: int,
    *,
    index_dtype: npt.DTypeLike = np.int32,
    weighted: bool = False,
    num_features: Mapping[Side, int] | None = None,
    num_left_out: int | None = None,
    checksums: Checksums | None = None,
    kind: str = EDGES,
) -> Iterator[BucketWriter]:
    """Open a new bucket file of `num_edges` edges, for appending within the block; atomic.

    Adds the file's checksum to `checksums`. `num_features` has the featurized sides, each with the total
    length of its lists. With `num_left_out`, the file also keeps so many rows that are no edges. `kind` is
    the beginning of the file's name.
    """
    uri = bucket_uri(edge_path, bucket, kind)
    with storage.create_hdf5(uri, checksums) as hdf5:
        hdf5.attrs["format_version"] = FORMAT_VERSION
        dtypes = dict.fromkeys(COLUMNS, index_dtype) | ({WEIGHT: np.float32} if weighted else {})
        columns = DatasetWriter(hdf5, uri, num_edges, dtypes, rows="edges")
        features = {
            side: FeaturesWriter(hdf5, uri, side, num_edges, num, index_dtype)
            for side, num in (num_features or {}).items()
        }
        left_out = None
        if num_left_out is not None:
            left_out = DatasetWriter(hdf5, uri, num_left_out, left_out_dtypes(list(dtypes), index_dtype))
            # HDF5 places a dataset at its first write: here, whatever the pieces are in which rows come.
            for dataset in left_out.datasets.values() if num_left_out else ():
                dataset[-1:] = 0
        writer = BucketWriter(uri, columns, features, left_out)
        yield writer
        writer.finish(hdf5)


def write_bucket(edge_path: str, bucket: Bucket, edges: Edges) -> None:
    """Write a whole bucket: int32, or int64 where a value needs it."""
    features = {side: lists for side in Side if (lists := edges.features(side)) is not None}
    indices = [edges.lhs, edges.rel, edges.rhs, *(feature.indices for feature in features.values())]
    largest = max(int(index.max(initial=0)) for index in indices)
    with new_bucket(
        edge_path,
        bucket,
        len(edges),
        index_dtype=np.int32 if largest <= np.iinfo(np.int32).max else np.int64,
        weighted=edges.weight is not None,
        num_features={side: len(lists.indices) for side, lists in features.items()},
    ) as writer:
        writer.append(edges)


def count_edges(edge_path: str, bucket: Bucket, kind: str = EDGES, *, versioned: bool = True) -> int:
    """Number of edges in the bucket."""
    with _open_bucket(bucket_uri(edge_path, bucket, kind), versioned=versioned) as datasets:
        return len(datasets["lhs"])


def count_all(edge_path: str, buckets: Sequence[Bucket]) -> dict[Bucket, int]:
    """Count the edges of each bucket; a file is opened only if `counts` does not tell."""
    present = {storage.name(entry.uri) for entry in storage.list_dir(edge_path)}
    known = {name: count for name, count in known_counts(edge_path).items() if name in present}
    names = {bucket: storage.name(bucket_uri(edge_path, bucket)) for bucket in buckets}
    others = [bucket for bucket, name in names.items() if name not in known]
    with ThreadPoolExecutor(16) as pool:  # threads wait for HDFS
        counted = dict(zip(others, pool.map(partial(count_edges, edge_path), others), strict=True))
    return {bucket: counted[bucket] if bucket in counted else known[names[bucket]] for bucket in buckets}


def has_weights(edge_path: str, bucket: Bucket) -> bool:
    """Tell whether the bucket's edges have weights."""
    with _open_bucket(bucket_uri(edge_path, bucket)) as datasets:
        return WEIGHT in datasets


def read_bucket(
    edge_path: str,
    bucket: Bucket,
    start: int = 0,
    stop: int | None = None,
    *,
    takes_features: bool = False,
    index_dtype: npt.DTypeLike = np.int64,
    new: NewArray = np.empty,
    kind: str = EDGES,
    versioned: bool = True,
) -> Edges:
    """The edges [start, stop) of the bucket (weights float32); cut like a Python slice.

    Without `takes_features`, lists of features are refused: the caller would take -1 for an index. An index
    beyond `index_dtype` becomes its largest number. `new` makes the columns. `kind` begins the file's name.
    Unless `versioned` is False, the file must have the known format version.
    """
    uri = bucket_uri(edge_path, bucket, kind)
    with _open_bucket(uri, storage.manifest_of(edge_path), versioned=versioned) as datasets:
        for side in Side:
            if offsets_name(side) in datasets and not takes_features:
                raise FormatError(
                    f"{uri}: its {side} side has lists of features ({offsets_name(side)}), expected an "
                    "index for every edge: featurized entity types are not supported here"
                )
        start, stop, _ = slice(start, stop).indices(len(datasets["lhs"]))
        stop = max(start, stop)
        weight = read_rows(datasets[WEIGHT], start, stop, np.float32, new) if WEIGHT in datasets else None
        lhs, rel, rhs = (read_rows(datasets[column], start, stop, index_dtype, new) for column in COLUMNS)
        features: dict[str, Features | None] = {
            side: read_features(datasets, side, start, stop, uri) for side in Side
        }
    for side, values in ((Side.LHS, lhs), (Side.RHS, rhs)):
        if takes_features and features[side] is None and values.min(initial=0) == -1:
            features[side] = empty_lists(len(values))  # PBG writes no lists where all are empty
    edges = Edges(lhs, rel, rhs, weight, features[Side.LHS], features[Side.RHS])
    for column in COLUMNS:
        check_not_negative(getattr(edges, column), column, uri, start, -1 if features.get(column) else 0)
    if weight is not None:
        check_weights(weight, uri, start)
    return edges


def check_weights(weight: npt.NDArray[np.float32], uri: str, first_row: int, of: str = "") -> None:
    """Refuse weights beyond 10^15, as in tables; `of` says what they are, if not those of the file."""
    if not (is_sound := np.abs(weight) <= MAX_WEIGHT).all():
        row = int(np.argmin(is_sound))
        found = f"{WEIGHT}[{first_row + row}]{of} is {weight[row]}"
        raise FormatError(f"{uri}: {found}; expected a number up to 10^15")


def check_indices(
    edges: Edges,
    uri: str,
    num_lhs: int | Sequence[int],
    num_rhs: int | Sequence[int],
    num_rel: int,
    first_row: int = 0,
    type_there: Callable[[int, Side], str] = "relation {}".format,
) -> None:
    """Check that the entities and the relation of every edge exist.

    The limits are the rows of the lhs and rhs partitions, for all relations or for each of them, and the
    number of relations. The edges begin at row `first_row` of the file at `uri`. `type_there` names the type
    that a relation has on a side.
    """
    for column, limits in (("rel", num_rel), (Side.LHS, num_lhs), (Side.RHS, num_rhs)):
        values, limit_R = getattr(edges, column), np.atleast_1d(limits)
        features = edges.features(column) if isinstance(column, Side) else None
        if features is not None:
            values = features.largest(values)
        if int(values.max(initial=-1)) < limit_R.min():
            continue
        limit_E = np.broadcast_to(limit_R if len(limit_R) == 1 else limit_R[edges.rel], len(values))
        beyond = np.flatnonzero(values >= limit_E)
        if len(beyond):
            row = int(beyond[0])
            place = f"{column}[{first_row + row}] is"
            if features is not None and features.counts[row]:
                place = f"{features_name(Side(column))} holds"
            relation = int(edges.rel[row])
            of_relation = f", rows of {type_there(relation, Side(column))}" if len(limit_R) > 1 else ""
            raise FormatError(
                f"{uri}: {place} {values[row]}; expected less than {limit_E[row]}{of_relation}: "
                "the bucket and the counts beside it are not from the same run"
            )


@contextmanager
def _open_bucket(
    uri: str, manifest: ChecksumManifest | None = None, *, versioned: bool = True
) -> Iterator[dict[str, h5py.Dataset]]:
    """The datasets of the bucket file by name, checked; `weight` only where there is one."""
    try:
        with open_checked(uri, manifest, versioned=versioned) as hdf5:
            datasets = {column: checked_dataset(hdf5, column, "iu", uri) for column in COLUMNS}
            if WEIGHT in hdf5:
                datasets[WEIGHT] = checked_dataset(hdf5, WEIGHT, "iuf", uri)
            lengths = {column: len(dataset) for column, dataset in datasets.items()}
            for side in Side:
                names = (offsets_name(side), features_name(side))
                if any(name in hdf5 for name in names):
                    datasets |= {name: checked_dataset(hdf5, name, "iu", uri) for name in names}
                    lengths[names[0]] = len(datasets[names[0]]) - 1
            if len(set(lengths.values())) > 1:
                described = ", ".join(f"{column} has {length}" for column, length in lengths.items())
                raise FormatError(f"{uri}: expected datasets of one length, found: {described}")
            yield datasets
    except NotFoundError as error:
        raise FormatError(
            f"{uri}: there is no such bucket; run the stage etl again (an empty one has datasets of length 0)"
        ) from error
