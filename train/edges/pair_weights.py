"""How much a wrong answer counts in a visit of two of B blocks of partitions (train/edges/visits.py).

Rows of two blocks meet in one visit of a pass, and all edges among them are there. Rows of one block meet in
all its B - 1 visits, and each of these has a part of the edges among them. If all wrong answers counted
alike, rows of one block would be wrong answers to each other B - 1 times as often as to other rows, and right
ones no more often: their scores would be too low by log(B - 1). So a wrong answer from a query's own block
counts 1 / (B - 1) times. Outside rows (train/tables/outside_rows.py) meet queries in addition to the visits
of their blocks: then pairs of different blocks meet more often, and those of one block count as much more.

Shapes: Q queries, N rows of a table.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Self

import torch
from torch import Tensor

from graphmill.checkpoints.pbg import Iteration
from graphmill.config import RelationConfig
from graphmill.vocab import Bucket
from train.edges.visits import Blocks

_OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class PairWeights:
    """Weights of the wrong answers of a visit; by default all are 1."""

    log_own: float = 0.0  # logarithm of the weight of those from a query's own block
    block_N: Mapping[str, Tensor] = field(default_factory=dict)  # 0 or 1; only of types that have blocks

    @classmethod
    def of(
        cls,
        blocks: Blocks,
        visit: Bucket,
        iteration: Iteration,
        num_rows: Mapping[str, list[int]],
        outside_share: float,
        device: torch.device,
    ) -> Self:
        """Weights of a visit; `num_rows` lists the rows of all partitions of each type."""
        if blocks.num == 1:
            return cls()
        parts: dict[str, list[Tensor]] = {}
        for (name, partition), block in blocks.blocks_of(visit, iteration).items():
            if block is not None:
                rows = torch.full((num_rows[name][partition],), visit.index(block), device=device)
                parts.setdefault(name, []).append(rows)
        log_own = math.log((1 + 2 * outside_share) / (blocks.num - 1))
        return cls(log_own, {name: torch.cat(own) for name, own in parts.items()})

    def blocks_of(self, name: str, rows_K: Tensor) -> Tensor:
        """The blocks of rows of a type, 0 or 1; 0 where the type has no blocks: int64 [K]."""
        block_N = self.block_N.get(name)
        return torch.zeros_like(rows_K, dtype=torch.int64) if block_N is None else block_N[rows_K.long()]

    def parts(
        self, relation: RelationConfig, lhs_E: Tensor, rhs_E: Tensor
    ) -> Iterator[tuple[tuple[int, int], Tensor | slice]]:
        """Split edges of a relation by the blocks of their entities: these, and the edges' numbers."""
        if relation.lhs not in self.block_N or relation.rhs not in self.block_N:
            yield (0, 0), slice(None)
            return
        lhs_E, rhs_E = self.blocks_of(relation.lhs, lhs_E), self.blocks_of(relation.rhs, rhs_E)
        for lhs, rhs in product(range(2), repeat=2):
            yield (lhs, rhs), torch.nonzero((lhs_E == lhs) & (rhs_E == rhs))[:, 0]

    def log_weights(self, asking: str, block: int, asked: str, num_rows: int) -> Tensor | None:
        """Logarithm of the weight of each of `num_rows` rows of type `asked`, [N]; None if all are 1.

        As wrong answers to queries whose entity is of type `asking` and of this block.
        """
        if asking not in self.block_N or asked not in self.block_N:
            return None
        block_N = self.block_N[asked]
        outside_N = block_N.new_full((num_rows - len(block_N),), _OUTSIDE)
        return self.log_own * (torch.cat([block_N, outside_N]) == block)


EQUAL = PairWeights()
