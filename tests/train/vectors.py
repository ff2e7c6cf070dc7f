"""Vectors by raw id for `train.init_embeddings`, and an entity index for small graphs."""

from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.murmur import HASH_NAME, hash_strings, scale

SEED = 5


def raw_ids(num, num_partitions=1, is_integer=False):
    """Raw ids that hashes place as `write_graph` places numbers: id i is in partition i % P."""
    waiting = [[] for _ in range(num_partitions)]
    numbers = count()
    for i in range(num):
        mine = waiting[i % num_partitions]
        while not mine:
            name = f"{next(numbers) * 7919 + 3}" if is_integer else f"näme {next(numbers)}"
            slot = scale(hash_strings(pa.array([name]), SEED), num_partitions)
            waiting[int(slot[0])].append(name)
        yield mine.pop(0)


def write_index(config, ids):
    """The entity index and the counts of types, from their raw ids in the order of `write_graph`."""
    num = {name: config.entities[name].num_partitions for name in ids}
    for name, given in ids.items():
        for part in range(num[name]):
            rows = given[part :: num[name]]
            entity_counts.write_count(config.entity_path, name, part, len(rows))
            with entity_index.new_part(config.entity_path, name, part) as writer:
                writer.append(pa.array(rows, pa.string()))
    entity_index.write_manifest(config.entity_path, entity_index.Manifest(HASH_NAME, SEED, num))


def write_vectors(uri, ids, vectors, *, list_type=None, id_type=None, **more):
    """A parquet file of ids and vectors, which may be a list of lists."""
    if list_type is None:
        list_type = pa.list_(pa.float32())
    plain = [each.tolist() if isinstance(each, np.ndarray) else each for each in vectors]
    columns = {"id": pa.array(ids, id_type), "embedding": pa.array(plain, list_type)}
    with storage.open_output(str(uri)) as stream:
        pq.write_table(pa.table(columns | more), stream, row_group_size=7)
