"""Draws of an evaluation: edges of a split, and candidates. Equal settings give equal draws anywhere.

Candidates are drawn without replacement from all entities of a type, anew for each QUERIES queries: then
errors of different queries are independent, and their spread gives a confidence interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.vocab import Partition, Side
from train.edges import seeds
from train.evaluation.queries import Numbers

QUERIES = 64
"""Queries that are ranked among the same drawn candidates."""


def drawn_rows(seed: int, counts: Sequence[int], num_drawn: int) -> list[Numbers]:
    """Draw rows of files with so many rows each; the rows of each file, ascending."""
    ends = np.cumsum([0, *counts])
    total = int(ends[-1])
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.choice(total, min(num_drawn, total), replace=False, shuffle=False))
    places = np.searchsorted(drawn, ends).tolist()
    return [
        drawn[first:last] - end for first, last, end in zip(places, places[1:], ends.tolist(), strict=False)
    ]


@dataclass(frozen=True)
class Drawing:
    """`num_candidates` entities of each type, whose partitions have `counts` rows."""

    seed: int
    num_candidates: int
    counts: dict[str, list[int]]

    def rows(self, side: Side, entity_type: str, block: int, partition: Partition) -> Numbers:
        """Rows of a partition that are candidates for a block of queries, ascending."""
        seed = seeds.derived(self.seed, "candidates", side, entity_type, block)
        return drawn_rows(seed, self.counts[entity_type], self.num_candidates)[partition]
