"""Negatives: which entities an edge's own are compared with.

A batch is cut in chunks of num_batch_negs edges. On each side, every edge of a chunk meets the entities of
the chunk's other edges, and num_uniform_negs entities that are drawn uniformly from the partition and
shared by the whole chunk; with all_negs, every entity of the partition instead. An edge never meets its
own entity: such scores are masked. The edges that do not fill a chunk make a smaller one.
Source: docs/formats/pbg_v1.md.

Shapes: B edges of a batch, C chunks, P positives a chunk, K candidates of a chunk (its P positives, then
the drawn ones), M of these that are negatives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.vocab import Side


@dataclass(frozen=True)
class Batch:
    """Edges that one step trains on; all of one relation, unless relations are dynamic."""

    relation: int
    index: Mapping[Side, Tensor]  # [B] rows of the two partitions
    rel_B: Tensor | None  # with dynamic relations
    weight_B: Tensor  # of the edge and its relation

    def __len__(self) -> int:
        return len(self.weight_B)


@dataclass(frozen=True)
class Block:
    """Chunks of equal size, and the candidates of each side."""

    relation: int
    rel_CP: Tensor | None
    weight_CP: Tensor
    rows: Mapping[Side, Tensor]  # [C, K] rows of the partition: the positives, then the drawn ones
    first_negative: Mapping[Side, int]  # 0 where the positives are each other's negatives, else P or K

    @property
    def num_positives(self) -> int:
        """P."""
        return self.weight_CP.shape[1]

    def own(self, side: Side) -> Tensor:
        """Which negatives are the positive itself: bool [C, P, M]."""
        rows_CK = self.rows[side]
        positives_CP = rows_CK[:, : self.num_positives]
        return positives_CP.unsqueeze(2) == rows_CK[:, self.first_negative[side] :].unsqueeze(1)


@dataclass(frozen=True)
class Sampling:
    """How many negatives an edge meets."""

    num_batch_negs: int
    num_uniform_negs: int
    disabled: frozenset[Side] = frozenset()

    @classmethod
    def of_training(cls, config: PbgConfig) -> "Sampling":
        """As training has it."""
        off = {Side.LHS: config.disable_lhs_negs, Side.RHS: config.disable_rhs_negs}
        disabled = frozenset(side for side in Side if off[side])
        return cls(config.num_batch_negs, config.num_uniform_negs, disabled)

    @classmethod
    def of_evaluation(cls, config: PbgConfig) -> "Sampling":
        """As the held-out edges of a bucket are ranked."""
        return cls(config.eval_num_batch_negs, config.eval_num_uniform_negs)

    def blocks(
        self, batch: Batch, num_rows: Mapping[Side, int], all_negs: bool, generator: torch.Generator
    ) -> Iterator[Block]:
        """Cut the batch in chunks: those of full size as one block, what is left as another."""
        size = len(batch) if all_negs else self.num_batch_negs or self.num_uniform_negs or len(batch)
        full = len(batch) // size * size
        for start, stop, chunk in ((0, full, size), (full, len(batch), len(batch) - full)):
            if start < stop:
                yield self._block(batch, slice(start, stop), chunk, num_rows, all_negs, generator)

    def _block(
        self,
        batch: Batch,
        edges: slice,
        chunk: int,
        num_rows: Mapping[Side, int],
        all_negs: bool,
        generator: torch.Generator,
    ) -> Block:
        weight_CP = batch.weight_B[edges].view(-1, chunk)
        num_chunks = len(weight_CP)
        rows: dict[Side, Tensor] = {}
        first: dict[Side, int] = {}
        for side in Side:
            positives_CP = batch.index[side][edges].view(-1, chunk)
            drawn = 0 if side in self.disabled or all_negs else self.num_uniform_negs
            drawn_CN = torch.randint(num_rows[side], (num_chunks, drawn), generator=generator)
            if all_negs and side not in self.disabled:
                drawn_CN = torch.arange(num_rows[side]).expand(num_chunks, -1)
            rows[side] = torch.cat([positives_CP, drawn_CN.to(positives_CP.device)], dim=1)
            in_batch = self.num_batch_negs > 0 and not all_negs and side not in self.disabled
            first[side] = 0 if in_batch else chunk
        rel_CP = None if batch.rel_B is None else batch.rel_B[edges].view(-1, chunk)
        return Block(batch.relation, rel_CP, weight_CP, rows, first)
