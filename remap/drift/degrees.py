"""Edges of each row of a partition, counted in the bucket files that have it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.formats.edge_buckets import bucket_uri, count_edges, read_bucket
from graphmill.vocab import Bucket, Partition, Side

Counts = npt.NDArray[np.int64]
Place = tuple[Side, Bucket]  # the side of a bucket that has a partition

_READ_EDGES = 1 << 22  # at a time


def places_of(config: Config, entity_type: str, partition: Partition) -> list[Place]:
    """List the sides of buckets that have edges of a partition."""
    is_cut = config.entities[entity_type].num_partitions > 1
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    return [
        (side, bucket)
        for side in Side
        if any(relation.entity_type(side) == entity_type for relation in config.relations)
        for bucket in (Bucket(lhs, rhs) for lhs in range(num_lhs) for rhs in range(num_rhs))
        if not is_cut or (bucket.lhs if side is Side.LHS else bucket.rhs) == partition
    ]


def degrees_of(config: Config, entity_type: str, num_rows: int, places: Sequence[Place]) -> Counts:
    """Count the edges of `edge_paths` of each row of a partition, [num_rows], in some of its buckets.

    Raises:
        FormatError: a file is damaged, or has a row that does not exist.
    """
    found = np.zeros(num_rows, np.int64)
    for side, bucket in places:
        is_own_R = [relation.entity_type(side) == entity_type for relation in config.relations]
        for path in config.edge_paths:
            if not storage.exists(bucket_uri(path, bucket)):
                continue
            num_edges = count_edges(path, bucket)
            for start in range(0, num_edges, _READ_EDGES):
                edges = read_bucket(path, bucket, start, start + _READ_EDGES, takes_features=True)
                row_E: Counts = np.asarray(edges.lhs if side is Side.LHS else edges.rhs, np.int64)
                is_own_E = np.ones(len(row_E), bool) if all(is_own_R) else np.array(is_own_R)[edges.rel]
                counts = np.bincount(row_E[is_own_E & (row_E >= 0)], minlength=num_rows)
                if len(counts) > num_rows:
                    raise FormatError(
                        f"{bucket_uri(path, bucket)}: on its {side} side {entity_type!r} has row "
                        f"{len(counts) - 1}; expected rows below {num_rows}, as there are embeddings"
                    )
                found += counts
    return found
