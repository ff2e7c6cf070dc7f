"""Number of partitions of the types for which the configuration gives none, from the number of their ids.

The number of ids is estimated before they are sorted: the k-th smallest of n random numbers in [0, 1) is near
k / n. Source: Bar-Yossef et al., Counting distinct elements in a data stream (RANDOM 2002).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from etl.steps.chunks import NUM_SMALLEST
from etl.steps.task_settings import MAX_UNCUT_PARTITIONS, TaskSettings
from graphmill.config import Config, defaults
from graphmill.storage.as_json import UInt64

log = logging.getLogger("graphmill")


def estimate(parts: Iterable[Sequence[int] | UInt64]) -> int:
    """Estimate the number of distinct ids from the smallest hashes of each part; few ids are counted."""
    hashes = [np.asarray(part, np.uint64) for part in parts]
    first = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))[:NUM_SMALLEST]
    if len(first) < NUM_SMALLEST:
        return len(first)
    return int((NUM_SMALLEST - 1) / (int(first[-1]) / 2**64))


def cut_types(
    config: Config, settings: TaskSettings, smallest: Mapping[str, UInt64], memory_bytes: int
) -> dict[str, int]:
    """Choose the number of partitions of each type that the configuration leaves out; return those of all.

    `smallest` has the smallest hashes of the ids of each of these types.
    """
    uncut = [name for name in settings.uncut if name not in settings.featurized]
    if not uncut:
        return settings.num_partitions
    num_ids = {name: estimate([smallest.get(name, [])]) for name in uncut}
    table_bytes = {
        name: defaults.embedding_bytes(count, config.entity_dimension(name))
        for name, count in num_ids.items()
    }
    num_workers = config.train.num_workers
    chosen = defaults.decided_partitions(
        table_bytes,
        memory_bytes,
        given=max(settings.num_partitions.values()),
        least=1 << (2 * num_workers - 1).bit_length() if num_workers > 1 else 1,  # all train at once
        most=min(MAX_UNCUT_PARTITIONS, *(settings.num_slots[name] for name in uncut)),
    )
    for name, count in chosen.items():
        if count > 1:
            size, memory = table_bytes[name] / 2**30, memory_bytes / 2**30
            log.info(
                f"etl: entities.{name}.num_partitions: {count}, as about {num_ids[name]:,} vectors and their "
                f"sums take {size:.3g} GiB, and the smallest worker has {memory:.3g} GiB of memory"
            )
    return settings.num_partitions | chosen
