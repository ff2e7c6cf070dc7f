"""GraphStorm's maps from raw ids to integer ids, for its tools.

    raw_id_mappings/{type}/part-{partition:05d}.parquet
        orig: string       the raw id; int64 or uint64 where the user's ids are integers
        new: int64         its integer id, 0 to N - 1 over all files of the type

In our maps, the integer id is the number of entities in the partitions before, plus the index. Other
writers have the files one folder deeper, in any order, or with older column names. Source:
docs/formats/graphstorm_maps.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.checkpoints.id_maps import Numbers
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.parquet import bounds, column_type, files_at, iter_columns, new_file, open_parquet
from graphmill.formats.raw_ids import is_text
from graphmill.storage import Checksums

FOLDER = "raw_id_mappings"
SCHEMA = pa.schema([("orig", pa.string()), ("new", pa.int64())])

_BATCH_ROWS = 1 << 16
_COLUMNS = (("orig", "new"), ("node_str_id", "node_int_id"))  # the names of today, and the older names


@dataclass(frozen=True)
class MapFile:
    """One file of a map: names of its columns, type of its raw ids (see `SCHEMA`), rows of its row groups."""

    uri: str
    orig: str
    new: str
    kind: pa.DataType
    group_rows: tuple[int, ...]


def list_raw_id_map(mapping_path: str, entity_type: str) -> list[MapFile]:
    """The files of a type's map, in any depth of folders, sorted by name; reads no rows."""
    folder = storage.join(mapping_path, entity_type)
    older = storage.join(mapping_path, f"{entity_type}_id_remap.parquet")
    if not (uris := files_at(folder, recursive=True) or files_at(older)):
        raise NotFoundError(
            f"{folder}: expected the map of {entity_type!r}, *.parquet, found none, nor {older}"
        )
    files = [_measure(uri) for uri in uris]
    for file in files:
        if file.kind != files[0].kind:
            raise FormatError(f"{file.uri}: raw ids are of another type than in {files[0].uri}")
    return files


def iter_raw_id_map(file: MapFile, groups: Iterable[int]) -> Iterator[tuple[int, pa.Array, Numbers]]:
    """The first row in the file, raw ids of its kind [n] and integer ids of consecutive row groups."""
    with open_parquet(file.uri) as parquet:
        for row, (orig, new) in iter_columns(parquet, file.uri, [file.orig, file.new], _BATCH_ROWS, groups):
            yield row, orig.cast(file.kind), new.cast(pa.int64()).to_numpy()


def _measure(uri: str) -> MapFile:
    with open_parquet(uri) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        columns = next((pair for pair in _COLUMNS if {*pair} <= {*schema.names}), None)
        if columns is None:
            raise FormatError(f"{uri}: expected columns orig and new, found {', '.join(schema.names)}")
        kinds = [column_type(schema, column, uri) for column in columns]
        ids = kinds[0].value_type if pa.types.is_dictionary(kinds[0]) else kinds[0]
        if not (is_text(ids) or pa.types.is_integer(ids)) or not pa.types.is_integer(kinds[1]):
            raise FormatError(
                f"{uri}: expected {columns[0]} of strings or integers and {columns[1]} of integers, found "
                f"{kinds[0]} and {kinds[1]}"
            )
        bounds.check_rows(parquet, uri)
        rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        kind = pa.string() if is_text(ids) else ids if pa.types.is_uint64(ids) else pa.int64()
        return MapFile(uri, *columns, kind, rows)


def write_raw_id_map(
    root: str,
    entity_type: str,
    partition: int,
    first_id: int,
    batches: Iterable[pa.Array],
    checksums: Checksums | None = None,
) -> None:
    """Write the map of one partition below `root`: batches of raw ids in the order of their indices.

    `first_id` is the integer id of the first entity; `checksums` gets the checksum of the file.
    """
    uri = storage.join(root, FOLDER, entity_type, f"part-{partition:05d}.parquet")
    with new_file(uri, SCHEMA, checksums) as parquet:
        for ids in batches:
            new = pa.array(np.arange(first_id, first_id + len(ids)))
            parquet.write_table(pa.Table.from_arrays([ids, new], schema=SCHEMA))
            first_id += len(ids)
