"""Loops: relations of edges whose two ends have one index, as an edge from an entity to itself has.

    edges_{lhs}_{rhs}.h5
        loops       optional, int64 [L]: numbers of these relations, ascending

So nobody reads all edges to learn which entities can be answers to themselves. The two ends may still be of
different types, or in different partitions: who asks knows. Files of others have no such dataset.
"""

import h5py
import numpy as np

from graphmill import storage
from graphmill.formats.edge_buckets.features import Indices
from graphmill.formats.edge_buckets.files import bucket_uri
from graphmill.formats.hdf5 import checked_dataset, new_dataset, open_checked, read_rows
from graphmill.storage.as_json import Int64
from graphmill.vocab import Bucket

LOOPS = "loops"
READ_EDGES = 1 << 20


def find_loops(lhs_E: Indices, rel_E: Indices, rhs_E: Indices) -> Int64:
    """Relations of the edges that have one index on both sides; a list of features has none."""
    return np.unique(rel_E[(lhs_E == rhs_E) & (lhs_E >= 0)].astype(np.int64))


def write_loops(hdf5: h5py.File, relations: set[int]) -> None:
    """Write the relations of a new bucket whose edges are written."""
    new_dataset(hdf5, LOOPS, (len(relations),), np.int64)[:] = sorted(relations)


def read_loops(edge_path: str, bucket: Bucket) -> set[int]:
    """Read the relations, from the edges where the file does not list them."""
    uri = bucket_uri(edge_path, bucket)
    with open_checked(uri) as hdf5:
        if LOOPS in hdf5:
            listed = checked_dataset(hdf5, LOOPS, "iu", uri)
            return set(read_rows(listed, 0, len(listed), np.int64).tolist())
    relations: set[int] = set()
    with open_checked(uri, storage.manifest_of(edge_path)) as hdf5:
        columns = [checked_dataset(hdf5, name, "iu", uri) for name in ("lhs", "rel", "rhs")]
        for start in range(0, min(map(len, columns)), READ_EDGES):
            stop = min(start + READ_EDGES, *map(len, columns))
            relations |= set(
                find_loops(*(read_rows(column, start, stop, np.int64) for column in columns)).tolist()
            )
    return relations
