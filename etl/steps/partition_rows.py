"""Which rows of which buckets name the ids of a partition."""

from collections.abc import Iterator

import numpy as np

from etl.steps.task_settings import Partition, TaskSettings
from graphmill.errors import FormatError
from graphmill.storage.as_json import Int32
from graphmill.vocab import Bucket, Side


def own_relations(settings: TaskSettings, entity_type: str, side: Side) -> Int32 | None:
    """Tell by 1 and 0 which relations [R] have a type on a side; None: all."""
    types = [relation.entity_type(side) == entity_type for relation in settings.relations]
    return None if all(types) else np.array(types, np.int32)


def buckets_of(settings: TaskSettings, partition: Partition, side: Side) -> Iterator[Bucket]:
    """List the buckets that have ids of the partition on a side; a type with one partition is in all."""
    slices = range(settings.grid[side is Side.RHS])
    if settings.num_partitions[partition.entity_type] == len(slices):
        slices = range(partition.number, partition.number + 1)
    for own in slices:
        for other in range(settings.grid[side is Side.LHS]):
            yield Bucket(own, other) if side is Side.LHS else Bucket(other, own)


def check_below(values: Int32, limit: int, column: str, uri: str) -> None:
    """Refuse values that a bucket of an earlier run cannot have."""
    if int(values.max(initial=-1)) >= limit:
        raise FormatError(
            f"{uri}: {column} holds {values.max()}; expected less than {limit}: the edges of "
            "etl.previous_edge_path are not those of etl.previous_entity_path"
        )
