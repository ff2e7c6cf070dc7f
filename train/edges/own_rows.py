"""Weights of wrong answers in a visit of two of B blocks of partitions (train/edges/visits.py).

Rows of two blocks meet in one visit, and all edges among them are there. Rows of one block meet in
all its B - 1 visits, and each of these has a part of the edges among them. If all wrong answers counted
alike, rows of one block would be wrong answers to each other B - 1 times as often as to other rows, and right
ones no more often: their scores would be too low by log(B - 1). So a wrong answer from a query's own block
counts 1 / (B - 1) times: in the softmax of a query by its weight, elsewhere by the odds that it is drawn.

A visit's table of a type has the rows of the first block, then those of the second.
Shapes: E edges, K rows.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config, RelationConfig
from graphmill.vocab import Bucket, Side
from train.edges.visits import Blocks

PAIRS = (0, 0), (0, 1), (1, 0), (1, 1)  # of blocks: of the lhs, and of the rhs


class OwnRows(NamedTuple):
    """The rows of a table from the block of a query's entity, and their weight as wrong answers."""

    start: int = 0
    stop: int = 0  # after the last
    weight: float = 1.0

    def weighted(self, score_K: Tensor, rows_K: Tensor) -> Tensor:
        """Add the logarithm of the weight of each row to its score; the weight of other rows is 1: [K]."""
        if self.weight == 1:
            return score_K
        is_own_K = (rows_K >= self.start) & (rows_K < self.stop)
        return score_K + is_own_K.to(score_K) * math.log(self.weight)

    def sum_weights(self, num_rows: int) -> float:
        """Add up the weights of all of so many rows."""
        return num_rows - (1 - self.weight) * (self.stop - self.start)

    def odds(self, num_rows: int) -> tuple[int, int, int]:
        """Return start, stop, and the odds of 2^32 that a row drawn from so many is one of these."""
        own = self.weight * (self.stop - self.start)
        return self.start, self.stop, round(2**32 * own / self.sum_weights(num_rows))

    def compared(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """List all rows, but each of these with odds of its weight: [K]."""
        rows_N = torch.arange(num_rows)
        if self.weight == 1:
            return rows_N
        is_other_N = (rows_N < self.start) | (rows_N >= self.stop)
        return rows_N[is_other_N | (torch.rand(num_rows, generator=generator) < self.weight)]


EQUAL = OwnRows()


@dataclass(frozen=True)
class BlockRows:
    """The rows of both blocks in the tables of a visit; by default there are no blocks."""

    weight: float = 1.0  # of a wrong answer from a query's own block
    stops: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of types that have blocks

    @classmethod
    def of(
        cls, blocks: Blocks, visit: Bucket, iteration: Iteration, num_rows: Mapping[str, Sequence[int]]
    ) -> Self:
        """Find the rows of a visit; `num_rows` lists the rows of all partitions of each type."""
        if blocks.num == 1:
            return cls()
        sizes: dict[str, list[int]] = {}
        for (name, partition), block in blocks.keys_of(visit, iteration).items():
            if block is not None:
                sizes.setdefault(name, [0, 0])[visit.index(block)] += num_rows[name][partition]
        stops = {name: (first, first + second) for name, (first, second) in sizes.items()}
        return cls(1 / (blocks.num - 1), stops)

    def own(self, relation: RelationConfig, side: Side, block: int) -> OwnRows:
        """The own rows on `side` of queries whose entity is in the first block, 0, or the second, 1."""
        if not self._differ(relation):
            return EQUAL
        first, second = self.stops[relation.entity_type(side)]
        return OwnRows(*((0, first), (first, second))[block], self.weight)

    @property
    def pairs(self) -> Sequence[tuple[int, int]]:
        """Pairs of blocks that edges are in."""
        return PAIRS if self.stops else PAIRS[:1]

    def own_rows(self, relation: RelationConfig, pair: tuple[int, int]) -> dict[Side, OwnRows]:
        """The own rows of edges whose lhs and rhs are in these blocks, on each side."""
        return {side: self.own(relation, side, block) for side, block in zip(Side, pair[::-1], strict=True)}

    def block_of(self, relation: RelationConfig, side: Side, rows_K: Tensor) -> Tensor:
        """The block of each of these entities on `side`, int64 [K]; 0 where blocks make no difference."""
        return (rows_K >= self._second(relation, side)).long()

    def kinds(self, config: Config, lhs_E: Tensor, rel_E: Tensor, rhs_E: Tensor) -> Tensor:
        """The number of each edge's static relation and pair of blocks, relation by relation, [E]."""
        relation_E = kind_E = torch.zeros_like(rel_E) if config.dynamic_relations else rel_E
        for side, rows_E in zip(Side, (lhs_E, rhs_E), strict=True) if self.stops else ():
            second_R = torch.tensor([self._second(relation, side) for relation in config.relations])
            kind_E = 2 * kind_E + (rows_E >= second_R.to(rows_E.device)[relation_E])
        return kind_E

    def _second(self, relation: RelationConfig, side: Side) -> int:
        """First row of the second block, if blocks make a difference."""
        return self.stops[relation.entity_type(side)][0] if self._differ(relation) else sys.maxsize

    def _differ(self, relation: RelationConfig) -> bool:
        return relation.lhs in self.stops and relation.rhs in self.stops


NO_BLOCKS = BlockRows()
