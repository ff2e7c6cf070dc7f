"""Chunks of encoded rows, as tasks and the driver know them: names and counts, no content."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from graphmill.storage.as_json import Int64, UInt64

NUM_SMALLEST = 1024
"""Hashes of a type from which its number of ids is estimated: 3 % off, in the mean."""


@dataclass(frozen=True)
class EdgeChunk:
    """An encoded chunk; its content is in its files."""

    name: str
    """Beginning of the names of its files in the work folder."""
    num_edges: int = 0
    num_relations: int = 0
    """Distinct relation names, with dynamic relations."""
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
