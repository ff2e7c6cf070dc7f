"""GraphStorm's maps from raw ids to integer ids, for its tools.

    raw_id_mappings/{type}/part-{partition:05d}.parquet
        orig: string       the raw id
        new: int64         its integer id, 0 to N - 1 over all partitions of the type

The integer id is the number of entities in the partitions before, plus the index. Source:
docs/formats/graphstorm_maps.md.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage

FOLDER = "raw_id_mappings"
SCHEMA = pa.schema([("orig", pa.string()), ("new", pa.int64())])


def raw_id_map_uri(root: str, entity_type: str, partition: int) -> str:
    """The file of one partition's map."""
    return storage.join(root, FOLDER, entity_type, f"part-{partition:05d}.parquet")


def write_raw_id_map(
    root: str, entity_type: str, partition: int, first_id: int, batches: Iterable[pa.Array]
) -> None:
    """Write the map of one partition.

    Args:
        root: the folder that `raw_id_mappings` lies in.
        entity_type: the type, GraphStorm's ntype.
        partition: the partition.
        first_id: integer id of its first entity.
        batches: its raw ids in the order of their indices.
    """
    uri = raw_id_map_uri(root, entity_type, partition)
    with storage.atomic_output(uri) as stream, pq.ParquetWriter(stream, SCHEMA) as parquet:
        for ids in batches:
            new = pa.array(np.arange(first_id, first_id + len(ids)))
            parquet.write_table(pa.Table.from_arrays([ids, new], schema=SCHEMA))
            first_id += len(ids)
