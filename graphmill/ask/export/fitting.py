"""The vectors of a type with their codec, and its fitting: ranges of dimensions, centroids of pieces.

{folder}/{type}/_scales.npy, _centroids.npy     the tables of a fitted codec

Centroids come from at most SAMPLE_ROWS rows, spread evenly over the type. The sample and its first centroids
do not depend on the workers, so neither do the tables.

Shapes: N rows of the sample or of a batch, D dimension, d dimensions of a piece, K centroids.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from distributed import Client

from graphmill import storage
from graphmill.ask.entities import EntityTable, checked_rows
from graphmill.ask.export.codecs import (
    NUM_CENTROIDS,
    Array,
    Codec,
    EncodedVectors,
    FloatCodec,
    Int8Codec,
    PqCodec,
    bounds_of,
    nearest,
    num_codes_of,
)
from graphmill.ask.export.settings import Precision
from graphmill.checkpoints.checkpoint import Floats, rows_of_batch
from graphmill.cluster import run_tasks
from graphmill.errors import FormatError

SAMPLE_ROWS = 64 * NUM_CENTROIDS
_ROUNDS = 15
_GROUPS = 8
CODEC_FILES = (r"_scales\.npy", r"_centroids\.npy")
_TABLES: Mapping[Precision, tuple[str, ...]] = {"int8": ("scales",), "pq": ("centroids",)}

Prepare = Callable[[Floats], Floats]  # what is done to vectors before they are encoded


@dataclass(frozen=True)
class Source:
    """Vectors of one entity type.

    Attributes:
        prepare: what is done to vectors before they are encoded.
        limit: rows at most, the most frequent first (tensorboard-projector).
        escape_ids: write white space in ids as %20 (word2vec).
    """

    table: EntityTable
    codec: Codec
    prepare: Prepare
    limit: int
    escape_ids: bool

    @property
    def entity_type(self) -> str:
        """The type."""
        return self.table.entity_type

    def batches(self, partition: int) -> Iterator[tuple[pa.Array, EncodedVectors]]:
        """Read a partition: raw ids (string [N]) and encoded vectors; some megabytes at a time."""
        part = self.table.parts[partition]
        trained = replace(self.table.trained, allow_non_finite=False)
        rows = checked_rows(trained, part, rows_of_batch(part.dimension), doing="exporting")
        for ids, vectors_ND in rows:
            yield ids, self.codec.encode(self.prepare(vectors_ND))

    def all_batches(self) -> Iterator[tuple[pa.Array, EncodedVectors]]:
        """Read all partitions, one after the other."""
        for part in self.table.parts:
            yield from self.batches(part.partition)


def fit(
    client: Client,
    folder: str,
    table: EntityTable,
    precision: Precision,
    num_bytes: int | None,
    prepare: Prepare,
    *,
    has_scale: bool,
) -> Codec:
    """Fit the codec of a type, and write its tables; or read those of an earlier fit."""
    uris = table_uris(folder, table.entity_type, precision)
    num_codes = num_codes_of(table.dimension, num_bytes, has_scale=has_scale)
    if all(storage.exists(uri) for uri in uris.values()):
        tables = {name: _read_array(uri) for name, uri in uris.items()}
        return codec_of(precision, table.dimension, tables, num_codes, has_scale=has_scale)
    if precision == "int8":
        codec: Codec = _fit_ranges(client, table, prepare)
    else:
        codec = _fit_centroids(client, table, num_codes, prepare, has_scale=has_scale)
    for name, array in codec.tables().items():
        with storage.atomic_output(uris[name]) as stream:
            np.lib.format.write_array(stream, array, allow_pickle=False)
    return codec


def codec_of(
    precision: Precision, dimension: int, tables: dict[str, Array], num_codes: int, *, has_scale: bool
) -> Codec:
    """Make the codec from its tables."""
    if precision == "int8":
        return Int8Codec(*tables["scales"])
    if precision == "pq":
        return PqCodec(tables["centroids"], num_codes, has_scale)
    return FloatCodec(precision, dimension)


def _fit_ranges(client: Client, table: EntityTable, prepare: Prepare) -> Int8Codec:
    arguments = [(table, part.partition, prepare) for part in table.parts]
    ranges = run_tasks(client, range_of, arguments, description="finding ranges", unit="partitions")
    low_D = np.min([low for low, _ in ranges], axis=0)
    high_D = np.max([high for _, high in ranges], axis=0)
    if not table.num_entities:
        low_D = high_D = np.zeros(table.dimension, np.float32)
    with np.errstate(over="ignore"):
        range_D = high_D - low_D
    if not np.isfinite(range_D).all():
        raise FormatError(
            f"--precision int8: {table.entity_type!r}: the range of dimension {int(range_D.argmax())} is not "
            "finite; go back to a preserved epoch, or take --precision float32"
        )
    return Int8Codec.of_range(low_D, range_D)


def range_of(table: EntityTable, partition: int, prepare: Prepare) -> tuple[Floats, Floats]:
    """Find the smallest and largest number of each dimension in a partition, [D] each; a Dask task."""
    low_D = np.full(table.dimension, np.inf, np.float32)
    high_D = -low_D
    for _, vectors_ND in table.blocks(partition, rows_of_batch(table.dimension)):
        prepared_ND = prepare(vectors_ND)
        low_D = np.minimum(low_D, prepared_ND.min(0))
        high_D = np.maximum(high_D, prepared_ND.max(0))
    return low_D, high_D


def _fit_centroids(
    client: Client, table: EntityTable, num_codes: int, prepare: Prepare, *, has_scale: bool
) -> PqCodec:
    groups = [pieces.tolist() for pieces in np.array_split(np.arange(num_codes), min(_GROUPS, num_codes))]
    arguments = [(table, num_codes, group, prepare) for group in groups]
    centroids = run_tasks(client, centroids_of, arguments, description="finding centroids", unit="groups")
    return PqCodec(np.concatenate(centroids, 1), num_codes, has_scale)


def centroids_of(table: EntityTable, num_codes: int, pieces: Sequence[int], prepare: Prepare) -> Array:
    """Find the centroids of neighbouring pieces, float16 [K, dimensions of the pieces]; a Dask task."""
    num_rows, bounds = table.num_entities, bounds_of(table.dimension, num_codes)
    if not num_rows:
        return np.zeros((1, bounds[pieces[-1] + 1] - bounds[pieces[0]]), np.float16)
    numbers = np.arange(min(num_rows, SAMPLE_ROWS)) * num_rows // min(num_rows, SAMPLE_ROWS)
    sample_ND = prepare(table.gather(numbers))
    slices = [(piece, slice(bounds[piece], bounds[piece + 1])) for piece in pieces]
    whole_KD = np.concatenate([k_means(sample_ND[:, own], piece) for piece, own in slices], 1)
    if not np.isfinite(whole_KD).all() or np.abs(whole_KD).max(initial=0) > np.finfo(np.float16).max:
        raise FormatError(
            f"--precision pq: {table.entity_type!r} has numbers that are not finite or beyond 65504; take "
            "--precision float32"
        )
    return whole_KD.astype(np.float16)


def k_means(sample_Nd: Floats, seed: int) -> Floats:
    """Find at most 256 centroids, float32 [K, d] (Lloyd); one without vectors moves to a random vector."""
    sample_Nd = np.ascontiguousarray(sample_Nd)
    rng = np.random.default_rng(seed)
    num_centroids = min(NUM_CENTROIDS, len(sample_Nd))
    centroids_Kd = sample_Nd[rng.choice(len(sample_Nd), num_centroids, replace=False)]
    for _ in range(_ROUNDS):
        number_N = nearest(sample_Nd, centroids_Kd)
        count_K = np.bincount(number_N, minlength=num_centroids)
        sums = map(partial(np.bincount, number_N, minlength=num_centroids), sample_Nd.T)
        means_Kd = np.stack(list(sums), 1) / np.maximum(count_K, 1)[:, None]
        centroids_Kd = means_Kd.astype(np.float32)
        empty = np.flatnonzero(count_K == 0)
        centroids_Kd[empty] = sample_Nd[rng.choice(len(sample_Nd), len(empty))]
    return centroids_Kd


def table_uris(folder: str, entity_type: str, precision: Precision) -> dict[str, str]:
    """Name the files of a codec's tables."""
    names = _TABLES.get(precision, ())
    return {name: storage.join(folder, entity_type, f"_{name}.npy") for name in names}


def _read_array(uri: str) -> Array:
    try:
        return np.lib.format.read_array(io.BytesIO(storage.read_bytes(uri)), allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{uri}: expected an array of numpy, found something else: {error}") from error
