"""Partitions: their keys, the locations of their files, the buckets that need them.

No import of torch: the client of a distributed run needs this module.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeVar

from graphmill.config import PbgConfig
from graphmill.vocab import Bucket, Partition, Side

Held = TypeVar("Held")

PartitionKey = tuple[str, Partition]  # an entity type, and one of its partitions


def all_buckets(config: PbgConfig) -> list[Bucket]:
    """Every bucket of an edge path."""
    grid = (range(config.num_side_partitions(side)) for side in Side)
    return [Bucket(*pair) for pair in product(*grid)]


def all_keys(config: PbgConfig) -> list[PartitionKey]:
    """Every partition of every entity type."""
    return [(name, partition) for name, num in config.num_partitions.items() for partition in range(num)]


def is_shared(config: PbgConfig, key: PartitionKey) -> bool:
    """Tell whether the key is the only partition of its type, which every bucket may need."""
    return config.entities[key[0]].num_partitions == 1


def key_of(config: PbgConfig, entity_type: str, side: Side, bucket: Bucket) -> PartitionKey:
    """The partition of a type that one side of a bucket needs."""
    partitioned = config.entities[entity_type].num_partitions > 1
    return entity_type, getattr(bucket, side) if partitioned else 0


def keys_of(config: PbgConfig, bucket: Bucket) -> set[PartitionKey]:
    """Keys of all partitions that a bucket needs, types with one partition included."""
    return {
        key_of(config, relation.entity_type(side), side, bucket)
        for relation in config.relations
        for side in Side
    }


def by_relation(
    config: PbgConfig, bucket: Bucket, held: Mapping[PartitionKey, Held]
) -> list[dict[Side, Held]]:
    """Choose from `held`, for each relation, the partitions of both its sides in a bucket."""
    return [
        {side: held[key_of(config, relation.entity_type(side), side, bucket)] for side in Side}
        for relation in config.relations
    ]


def type_there(config: PbgConfig, relation: int, side: Side) -> str:
    """Name the entities of a side of a relation, for messages."""
    entry = config.relations[relation]
    return f"{entry.entity_type(side)!r}, which relation {entry.name!r} has there"


def rows_of(
    config: PbgConfig, num_rows: Mapping[str, Sequence[int]], bucket: Bucket
) -> dict[Side, list[int]]:
    """List, for each side, the rows of the partition that each relation needs."""
    rows: dict[Side, list[int]] = {}
    for side in Side:
        keys = [key_of(config, relation.entity_type(side), side, bucket) for relation in config.relations]
        rows[side] = [num_rows[name][partition] for name, partition in keys]
    return rows
