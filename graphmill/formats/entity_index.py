"""The entity index: the raw id of each row of each partition.

    entities/entity_index/
        manifest.json                       the rule that assigned raw ids to partitions
        {type}/part-{partition:05d}.parquet
            id       string                 raw id, no nulls, no duplicates
            index    int64                  row k of the file has index k
            gone_since      date32          optional: the first run that found no edge of the id; null: it has
            previous_index  int64           optional: its row in the earlier index; null: it is new

Source: docs/formats/entity_index.md.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds, check_schema, iter_columns, new_file, open_parquet
from graphmill.storage import Checksums
from graphmill.storage.as_json import read_as
from graphmill.storage.checksums import of_bytes

FORMAT_VERSION = 1
FOLDER = "entity_index"
MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("index", pa.int64(), nullable=False)]
)
_GONE_SINCE, _PREVIOUS_INDEX = "gone_since", "previous_index"
_WITH_HISTORY = SCHEMA.append(pa.field(_GONE_SINCE, pa.date32())).append(
    pa.field(_PREVIOUS_INDEX, pa.int64())
)

HERE = np.iinfo(np.int32).max
"""Day of an id that is not gone."""

_LONG_IDS = 1 << 14  # rows that a batch must have room for: an id that many rows share may be long
_ACCEPTED = {"id": (pa.string(), pa.large_string()), "index": (pa.int64(), pa.int32())}


@dataclass(frozen=True)
class Manifest:
    """The rule from raw ids to (partition, index): the hash, its seed, and the partitions of each type."""

    hash_name: str
    seed: int
    num_partitions: dict[Annotated[str, Field(pattern=r"^[^./]*$")], Annotated[int, Field(ge=1)]]
    num_previous: dict[str, list[Annotated[int, Field(ge=0)]]] | None = None
    """Rows of each partition of the earlier index, of types that it had; None: the parts have no history."""


_MANIFEST = TypeAdapter(Manifest)


class History(NamedTuple):
    """Values of some ids in earlier runs: [N] each."""

    gone_since: npt.NDArray[np.int32]
    """Days since 1970; `HERE`: the id is not gone."""
    previous_index: npt.NDArray[np.int64]
    """-1: the id is new."""


def part_uri(entity_path: str, entity_type: str, partition: int) -> str:
    """The file with the raw ids of one partition."""
    return storage.join(entity_path, FOLDER, entity_type, f"part-{partition:05d}.parquet")


class IndexPartWriter:
    """Appends raw ids to a new part; their indices count on from 0."""

    def __init__(self, parquet: pq.ParquetWriter, uri: str):
        self._parquet = parquet
        self._uri = uri
        self._num_written = 0

    def append(self, ids: pa.Array, history: History | None = None) -> None:
        """Write `ids` (string [N]) as row groups of their own, a million rows each at most.

        A part that was opened with history needs that of the ids.
        """
        if ids.null_count:
            row = self._num_written + pc.index(pc.is_null(ids), True).as_py()
            raise FormatError(f"{self._uri}: the raw id of row {row} is null; every entity needs one")
        if len(ids):
            stop = self._num_written + len(ids)
            index = pa.array(np.arange(self._num_written, stop))
            columns = [ids.cast(pa.string()), index]
            if history is not None:
                gone = pa.array(history.gone_since, mask=history.gone_since == HERE).cast(pa.date32())
                columns += [gone, pa.array(history.previous_index, mask=history.previous_index < 0)]
            schema = SCHEMA if history is None else _WITH_HISTORY
            self._parquet.write_table(pa.Table.from_arrays(columns, schema=schema))
            self._num_written = stop


@contextmanager
def new_part(
    entity_path: str,
    entity_type: str,
    partition: int,
    checksums: Checksums | None = None,
    *,
    has_history: bool = False,
) -> Iterator[IndexPartWriter]:
    """Open a new part, for appending within the block; atomic. Adds its checksum to `checksums`."""
    uri = part_uri(entity_path, entity_type, partition)
    with new_file(
        uri,
        _WITH_HISTORY if has_history else SCHEMA,
        checksums,
        compression="zstd",
        write_page_checksum=False,
        # All raw ids differ: pyarrow would build a dictionary and then discard it.
        use_dictionary=[_GONE_SINCE] if has_history else False,
        column_encoding={"id": "PLAIN", "index": "DELTA_BINARY_PACKED"}
        | ({_PREVIOUS_INDEX: "DELTA_BINARY_PACKED"} if has_history else {}),
    ) as parquet:
        yield IndexPartWriter(parquet, uri)


def digest_of(checksums: Mapping[str, str]) -> str:
    """Digest a folder, given the checksums of its files by path: raw ids and relations, where it has them."""
    has_index = any(path.startswith(f"{FOLDER}/") for path in checksums)
    beginnings = (f"{FOLDER}/", "dynamic_rel") if has_index else ("",)
    ours = {path: checksum for path, checksum in checksums.items() if path.startswith(beginnings)}
    return of_bytes(json.dumps(ours, sort_keys=True).encode())


def count_part(entity_path: str, entity_type: str, partition: int) -> int:
    """Number of raw ids in the part, from its footer."""
    with open_parquet(part_uri(entity_path, entity_type, partition)) as parquet:
        return int(parquet.metadata.num_rows)


def iter_part(
    entity_path: str, entity_type: str, partition: int, batch_rows: int = 65536
) -> Iterator[pa.Array]:
    """The raw ids of the part in the order of their indices, string arrays of at most `batch_rows`."""
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


def read_gone_since(
    entity_path: str, entity_type: str, partition: int, num_ids: int
) -> npt.NDArray[np.int32] | None:
    """The day [num_ids] since which each id of a part is gone, or `HERE`; None: the part has no history."""
    uri = part_uri(entity_path, entity_type, partition)
    return _read_history(entity_path, uri, _GONE_SINCE, pa.date32(), np.full(num_ids, HERE, np.int32))


def read_previous_index(
    entity_path: str, entity_type: str, partition: int, num_ids: int, num_previous: int
) -> npt.NDArray[np.int64]:
    """The rows [K] of the earlier index that the first K ids of a part had there; the other ids are new."""
    uri = part_uri(entity_path, entity_type, partition)
    index = _read_history(entity_path, uri, _PREVIOUS_INDEX, pa.int64(), np.full(num_ids, -1, np.int64))
    if index is None:
        raise FormatError(f"{uri}: expected a column {_PREVIOUS_INDEX!r}, as {MANIFEST} says, found none")
    num_known = int((index >= 0).sum())
    known: npt.NDArray[np.int64] = index[:num_known]
    if (index[num_known:] >= 0).any() or (np.diff(known) <= 0).any() or (known >= num_previous).any():
        raise FormatError(
            f"{uri}: {_PREVIOUS_INDEX}: expected ascending rows below {num_previous}, and then nulls"
        )
    return known


def _read_history(
    entity_path: str, uri: str, column: str, kind: pa.DataType, values_N: npt.NDArray[Any]
) -> npt.NDArray[Any] | None:
    """Put the values of a column that are not null into `values_N`; None if there is no such column."""
    with open_parquet(uri, storage.manifest_of(entity_path)) as parquet:
        if parquet.metadata.num_rows != len(values_N):
            raise FormatError(f"{uri}: expected {len(values_N)} ids, found {parquet.metadata.num_rows}")
        if column not in parquet.schema_arrow.names:
            return None
        check_schema(parquet, {column: (kind,)}, uri)
        start = 0
        for batch in parquet.iter_batches(bounds.batch_rows(parquet, uri, [column], 65536), columns=[column]):
            values = batch.column(0).cast(pa.int32() if pa.types.is_date(kind) else kind)
            rows = start + np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            values_N[rows] = values.drop_null().to_numpy()
            start += len(batch)
    return values_N


def write_manifest(entity_path: str, manifest: Manifest, checksums: Checksums | None = None) -> None:
    """Write the manifest, the last file of an index; add its checksum to `checksums`."""
    content = {"format_version": FORMAT_VERSION, **asdict(manifest)}
    if manifest.num_previous is None:
        del content["num_previous"]
    storage.write_json(_manifest_uri(entity_path), content, checksums, indent=1)


def read_manifest(entity_path: str) -> Manifest:
    """The manifest of the index."""
    uri = _manifest_uri(entity_path)
    content = storage.read_compared(uri, storage.manifest_of(entity_path))
    manifest = read_as(_MANIFEST, content, uri, "the manifest of an entity index", FORMAT_VERSION)
    for name, counts in (manifest.num_previous or {}).items():
        if len(counts) != manifest.num_partitions.get(name):
            raise FormatError(
                f"{uri}: num_previous: expected the rows of each partition of a type, found {name!r}: "
                f"{counts!r}"
            )
    return manifest


def _manifest_uri(entity_path: str) -> str:
    return storage.join(entity_path, FOLDER, MANIFEST)
