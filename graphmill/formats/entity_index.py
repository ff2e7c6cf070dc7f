"""The entity index: the raw id of each row of each partition.

    entities/entity_index/
        manifest.json                       the rule that assigned raw ids to partitions
        {type}/part-{partition:05d}.parquet
            id       string                 raw id, no nulls, no duplicates
            index    int64                  row k of the file has index k

Source: docs/formats/entity_index.md.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds, check_schema, iter_columns, open_parquet
from graphmill.storage import Checksums

FORMAT_VERSION = 1
FOLDER = "entity_index"
MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("index", pa.int64(), nullable=False)]
)

_LONG_IDS = 1 << 14  # rows that a batch must have room for: an id that many rows share may be long
_ACCEPTED = {"id": (pa.string(), pa.large_string()), "index": (pa.int64(), pa.int32())}


@dataclass(frozen=True)
class Manifest:
    """The rule from raw ids to (partition, index): the hash, its seed, and the partitions of each type."""

    hash_name: str
    seed: int
    num_partitions: dict[str, int]


def part_uri(entity_path: str, entity_type: str, partition: int) -> str:
    """The file with the raw ids of one partition."""
    return storage.join(entity_path, FOLDER, entity_type, f"part-{partition:05d}.parquet")


class PartWriter:
    """Appends raw ids to a new part; their indices count on from 0."""

    def __init__(self, parquet: pq.ParquetWriter, uri: str):
        self._parquet = parquet
        self._uri = uri
        self._num_written = 0

    def append(self, ids: pa.Array) -> None:
        """Write `ids` (string [N]) as row groups of their own, a million rows each at most.

        Raises:
            FormatError: an id is null.
        """
        if ids.null_count:
            row = self._num_written + pc.index(pc.is_null(ids), True).as_py()
            raise FormatError(f"{self._uri}: the raw id of row {row} is null; every entity needs one")
        if len(ids):
            stop = self._num_written + len(ids)
            index = pa.array(np.arange(self._num_written, stop))
            self._parquet.write_table(pa.Table.from_arrays([ids.cast(pa.string()), index], schema=SCHEMA))
            self._num_written = stop


@contextmanager
def new_part(
    entity_path: str, entity_type: str, partition: int, checksums: Checksums | None = None
) -> Iterator[PartWriter]:
    """Open a new part, for appending within the block; atomic. Adds its checksum to `checksums`."""
    uri = part_uri(entity_path, entity_type, partition)
    with (
        storage.atomic_output(uri, checksums=checksums) as stream,
        pq.ParquetWriter(
            stream,
            SCHEMA,
            compression="zstd",
            # All raw ids differ: pyarrow would build a dictionary and then discard it.
            use_dictionary=False,
            column_encoding={"id": "PLAIN", "index": "DELTA_BINARY_PACKED"},
        ) as parquet,
    ):
        yield PartWriter(parquet, uri)


def count_part(entity_path: str, entity_type: str, partition: int) -> int:
    """Number of raw ids in the part, from its footer."""
    with open_parquet(part_uri(entity_path, entity_type, partition)) as parquet:
        return int(parquet.metadata.num_rows)


def iter_part(
    entity_path: str, entity_type: str, partition: int, batch_rows: int = 65536
) -> Iterator[pa.Array]:
    """The raw ids of the part in the order of their indices, string arrays of at most `batch_rows`.

    Raises:
        NotFoundError: there is no such part.
        FormatError: it does not follow docs/formats/entity_index.md, or has another checksum.
    """
    uri = part_uri(entity_path, entity_type, partition)
    with open_parquet(uri, storage.manifest_of(entity_path)) as parquet:
        check_schema(parquet, _ACCEPTED, uri)
        if bounds.batch_rows(parquet, uri, ["id"], _LONG_IDS) < _LONG_IDS:
            raise FormatError(f"{uri}: expected an id once only, found long ids that rows share")
        for first, (ids, index) in iter_columns(parquet, uri, ["id", "index"], batch_rows):
            wrong = np.flatnonzero(index.to_numpy() != np.arange(first, first + len(ids)))
            if len(wrong):
                row = first + int(wrong[0])
                raise FormatError(f"{uri}: expected index {row} in row {row}, found {index[int(wrong[0])]}")
            yield ids.cast(pa.string())


def read_part(entity_path: str, entity_type: str, partition: int) -> pa.Array:
    """All raw ids of the part in one large_string array."""
    batches = [ids.cast(pa.large_string()) for ids in iter_part(entity_path, entity_type, partition)]
    return pa.concat_arrays(batches) if batches else pa.array([], pa.large_string())


def write_manifest(entity_path: str, manifest: Manifest, checksums: Checksums | None = None) -> None:
    """Write the manifest, the last file of an index; add its checksum to `checksums`."""
    content = {"format_version": FORMAT_VERSION, **asdict(manifest)}
    storage.write_text(_manifest_uri(entity_path), json.dumps(content, indent=1) + "\n", checksums)


def read_manifest(entity_path: str) -> Manifest:
    """The manifest of the index.

    Raises:
        NotFoundError: there is no entity index.
        FormatError: it does not follow docs/formats/entity_index.md, or has another version.
    """
    uri = _manifest_uri(entity_path)
    content = storage.json_in(storage.read_compared(uri, storage.manifest_of(entity_path)), uri)
    if "format_version" not in content:
        raise FormatError(f"{uri}: expected an object with the key 'format_version', found none")
    version = content["format_version"]
    if version != FORMAT_VERSION:
        raise FormatError(f"{uri}: format_version is {version!r}; this reader knows {FORMAT_VERSION}")
    hash_name, seed, num_partitions = (content.get(key) for key in ("hash_name", "seed", "num_partitions"))
    if not (isinstance(hash_name, str) and type(seed) is int and isinstance(num_partitions, dict)):
        raise FormatError(
            f"{uri}: expected hash_name (string), seed (integer) and num_partitions (object), "
            f"found {hash_name!r}, {seed!r}, {num_partitions!r}"
        )
    for entity_type, num in num_partitions.items():
        if type(num) is not int or num < 1 or set("./") & set(entity_type):
            raise FormatError(
                f"{uri}: num_partitions: expected a type's name (no dot or slash) and its number of "
                f"partitions (1 or more), found {entity_type!r}: {num!r}"
            )
    return Manifest(hash_name, seed, num_partitions)


def _manifest_uri(entity_path: str) -> str:
    return storage.join(entity_path, FOLDER, MANIFEST)
