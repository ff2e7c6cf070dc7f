"""Chunks of encoded rows, as tasks and the driver know them: names and counts, no content.

From the counts follows the number of partitions of the types for which the configuration gives none. It needs
the number of ids before they are sorted: the k-th smallest of n random numbers in [0, 1) is near k / n.
Source: Bar-Yossef et al., Counting distinct elements in a data stream (RANDOM 2002).
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from etl.steps.task_settings import MAX_UNCUT_PARTITIONS, TaskSettings
from graphmill.config import Config, defaults
from graphmill.storage.as_json import Int64, UInt64

log = logging.getLogger("graphmill")

NUM_SMALLEST = 1024
"""Hashes of a type from which its number of ids is estimated: 3 % off, in the mean."""


@dataclass(frozen=True)
class EdgeChunk:
    """An encoded chunk; its content is in its files."""

    name: str
    """Beginning of the names of its files in the work folder."""
    num_edges: int = 0
    files: tuple[tuple[int, int], ...] = ()
    """Number of each file whose rows the chunk has, and its edges in the chunk, in the order of the edges."""
    removes: bool = False
    """Whether the rows are no edges, but take out edges."""


@dataclass(frozen=True, eq=False)
class IdCounts:
    """Counts of the ids and relations of chunks, added up: their size does not grow with the chunks."""

    num_ids: Int64
    """[slots of all partitions] distinct ids of each chunk."""
    id_bytes: Int64
    """[slots of all partitions] bytes of these ids."""
    relation_counts: Int64
    """Train edges of each relation, with static relations."""
    smallest: dict[str, UInt64]
    """Smallest hashes, ascending, of the ids of each type that may be cut, to estimate its number of ids."""

    def __add__(self, other: "IdCounts") -> "IdCounts":
        none = np.zeros(0, np.uint64)
        both = {
            name: np.append(self.smallest.get(name, none), other.smallest.get(name, none))
            for name in {**self.smallest, **other.smallest}
        }
        return IdCounts(
            self.num_ids + other.num_ids,
            self.id_bytes + other.id_bytes,
            self.relation_counts + other.relation_counts,
            {name: np.unique(hashes)[:NUM_SMALLEST] for name, hashes in both.items()},
        )


@dataclass
class RowCounts:
    """Counts of the rows of a file, or of a part of it."""

    num_rows: int = 0
    num_edges: int = 0
    num_self_loops: int = 0
    """Dropped self-loops."""
    num_bad: Counter[str] = field(default_factory=Counter)
    """Bad rows in quarantine, by reason."""
    num_unknown: Counter[str] = field(default_factory=Counter)
    """Bad rows in quarantine by unknown relation."""


@dataclass
class Encoded:
    """Chunks and counts of a group of file ranges."""

    chunks: list[EdgeChunk] = field(default_factory=list)
    files: dict[int, RowCounts] = field(default_factory=dict)
    """By number of the file."""
    null_words: dict[str, list[str]] = field(default_factory=dict)
    """Ids of each type that other systems write for null."""


def estimate(smallest: UInt64) -> int:
    """Estimate the number of distinct ids from the smallest hashes, ascending; few ids are counted."""
    if len(smallest) < NUM_SMALLEST:
        return len(smallest)
    return int((NUM_SMALLEST - 1) / (int(smallest[-1]) / 2**64))


def cut_types(
    config: Config, settings: TaskSettings, smallest: Mapping[str, UInt64], memory_bytes: int
) -> dict[str, int]:
    """Choose the number of partitions of each type that the configuration leaves out; return those of all.

    `smallest` has the smallest hashes of the ids of each of these types.
    """
    uncut = [name for name in settings.uncut if name not in settings.featurized]
    if not uncut:
        return settings.num_partitions
    num_ids = {name: estimate(smallest[name]) if name in smallest else 0 for name in uncut}
    table_bytes = {
        name: count * config.entity_dimension(name) * defaults.BYTES_PER_ELEMENT
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
