"""Loops: training edges from an entity to itself. Where a relation has none, no id is an answer to itself."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product, starmap

from graphmill import storage
from graphmill.config import Config
from graphmill.formats.edge_buckets.loops import read_loops
from graphmill.vocab import Bucket, Side

_NUM_READING = 16  # threads, which wait for HDFS

log = logging.getLogger("graphmill")


def loopless(config: Config, numbers: Iterable[int]) -> tuple[int, ...]:
    """Choose, of relations by number, those of one type on both sides of which no training edge is a loop.

    Buckets that etl has written tell it at once. Of others, those are read that can hold loops.

    Raises:
        FormatError: a bucket is damaged.
        NotFoundError: there is no such bucket.
    """
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
                found |= {each for each in relations if has_diagonal or num_partitions.get(each) == 1}
    return tuple(sorted(num_partitions.keys() - found))
