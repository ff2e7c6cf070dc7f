"""Names of bucket files, the edges of each, and their loops: who plans a run need not read all edges.

    edges/train/
        edges_0_0.h5        or removed_0_0.h5: edges that a delta no longer has
        num_edges.json      {"edges_0_0.h5": [edges, checksum of the file], ...}
        checksums.xxh128    the manifest of the folder

A count is believed if the manifest has the same checksum for the bucket. Whoever reads the bucket compares
that checksum, so that no file that was replaced is read with an old count.

A loop is a relation of edges whose two ends have one index, as an edge from an entity to itself has. The two
ends may be of different types, or in different partitions: who asks knows. Source: docs/formats/pbg_v1.md.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated

import h5py
import numpy as np
from pydantic import Field, TypeAdapter

from graphmill import storage
from graphmill.errors import NotFoundError
from graphmill.formats.edge_buckets.features import Indices
from graphmill.formats.hdf5 import checked_dataset, new_dataset, open_checked, read_rows
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int64, read_as
from graphmill.vocab import Bucket

EDGES = "edges"
REMOVED = "removed"


def bucket_uri(edge_path: str, bucket: Bucket, kind: str = EDGES) -> str:
    """The file of `bucket` in the folder `edge_path`."""
    return storage.join(edge_path, f"{kind}_{bucket.lhs}_{bucket.rhs}.h5")


def list_buckets(edge_path: str) -> list[Bucket]:
    """The buckets with a file of edges in the folder `edge_path`, as its name says them, sorted."""
    matches = (_BUCKET.fullmatch(storage.name(entry.uri)) for entry in storage.list_dir(edge_path))
    return sorted(Bucket(int(match["lhs"]), int(match["rhs"])) for match in matches if match)


COUNTS = "num_edges.json"

_BUCKET = re.compile(r"edges_(?P<lhs>0|[1-9]\d*)_(?P<rhs>0|[1-9]\d*)\.h5")
_CONTENT = TypeAdapter(dict[str, tuple[Annotated[int, Field(ge=0)], str]])


def write_counts(edge_path: str, counts: Mapping[str, int], checksums: Checksums) -> None:
    """Write the edges of each bucket file, by URI; `checksums` has those of the files, and gets another."""
    content = {storage.name(uri): [count, checksums[uri]] for uri, count in counts.items()}
    storage.write_text(storage.join(edge_path, COUNTS), json.dumps(content), checksums)


def known_counts(edge_path: str) -> dict[str, int]:
    """Read the numbers of edges, by file name, of bucket files that are the same as when counted."""
    manifest = storage.manifest_of(edge_path)
    checksums = storage.read_checksums(manifest.uri)
    if COUNTS not in checksums:
        return {}
    uri = storage.join(edge_path, COUNTS)
    try:
        content = storage.read_compared(uri, manifest)
    except NotFoundError:
        return {}
    counts = read_as(_CONTENT, content, uri, "the edges and the checksum of each bucket")
    return {name: count for name, (count, checksum) in counts.items() if checksums.get(name) == checksum}


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
