"""Facts of a run's edges: the number of each row of a partition, and relations in which no edge is a loop.

If no training edge of a relation is a loop, from an entity to itself, no id is an answer to itself.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product, starmap

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.formats.edge_buckets import Edges, bucket_uri, count_edges, folders, read_bucket
from graphmill.formats.edge_buckets.loops import read_loops
from graphmill.vocab import Bucket, Partition, Side

Counts = npt.NDArray[np.int64]
Place = tuple[Side, Bucket]  # the side of a bucket that has a partition

_READ_EDGES = 1 << 22  # at a time

_NUM_READING = 16  # threads, which wait for HDFS

log = logging.getLogger("graphmill")


def loopless(config: Config, numbers: Iterable[int]) -> tuple[int, ...]:
    """Choose relations by number: those of one type on both sides of which no training edge is a loop."""
    entries = {each: config.relations[0 if config.dynamic_relations else each] for each in numbers}
    num_partitions = {
        number: config.entities[entry.lhs].num_partitions
        for number, entry in entries.items()
        if entry.lhs == entry.rhs
    }
    if not num_partitions:
        return ()
    paths = [path for path in config.edge_paths if storage.is_dir(path)]
    if not paths:
        log.warning(
            "%s: there are no training edges: no id is taken for its own answer", config.edge_paths[0]
        )
    grid = starmap(Bucket, product(*(range(config.num_side_partitions(side)) for side in Side)))
    is_anywhere = 1 in num_partitions.values()  # edges of a type with one partition are in all buckets
    buckets = [each for each in grid if is_anywhere or each.lhs == each.rhs]
    found: set[int] = set()
    with ThreadPoolExecutor(_NUM_READING) as pool:
        for path in paths:
            for bucket, relations in zip(buckets, pool.map(partial(read_loops, path), buckets), strict=True):
                has_diagonal = bucket.lhs == bucket.rhs
                found |= {
                    relation for relation in relations if has_diagonal or num_partitions.get(relation) == 1
                }
    return tuple(sorted(num_partitions.keys() - found))


def known_paths(config: Config) -> list[str]:
    """Folders of the edges of all splits."""
    paths = [*config.edge_paths, *folders(config.edge_root, config.entity_path)]
    return list(dict.fromkeys(path.rstrip("/") for path in paths))


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
    """Count the edges of `edge_paths` of each row of a partition, [num_rows], in some of its buckets."""
    found = np.zeros(num_rows, np.int64)
    for side, bucket in places:
        is_own_R = np.array([relation.entity_type(side) == entity_type for relation in config.relations])
        for path in config.edge_paths:
            uri = bucket_uri(path, bucket)
            if not storage.exists(uri):
                continue
            for start in range(0, count_edges(path, bucket), _READ_EDGES):
                edges = read_bucket(path, bucket, start, start + _READ_EDGES, takes_features=True)
                counts = np.bincount(_rows(edges, side, is_own_R, uri), minlength=num_rows)
                if len(counts) > num_rows:
                    raise FormatError(
                        f"{uri}: on its {side} side {entity_type!r} has row {len(counts) - 1}; expected rows "
                        f"below {num_rows}, as there are embeddings"
                    )
                found += counts
    return found


def _rows(edges: Edges, side: Side, is_own_R: npt.NDArray[np.bool_], uri: str) -> Counts:
    """Rows on a side, of edges of the relations that have the type there; lists of features have none."""
    row_E: Counts = np.asarray(edges.lhs if side is Side.LHS else edges.rhs, np.int64)
    is_there_E = row_E >= 0
    if not is_own_R.all():
        if (last := int(edges.rel.max(initial=0))) >= len(is_own_R):
            raise FormatError(f"{uri}: relation {last}; expected one of {len(is_own_R)}")
        is_there_E &= is_own_R[edges.rel]
    return row_E[is_there_E]
