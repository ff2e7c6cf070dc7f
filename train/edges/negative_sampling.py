"""Negative sampling: the entities that replace an edge's own entities.

The edges of a chunk (train.chunk_edges of a batch) share their negatives. On each side, the negatives of a
chunk are the entities of its first num_batch_negs edges (edges come in random order), and num_uniform_negs
entities drawn from the partition (uniformly, by train.negative_power, or by a plug-in). With all_negs,
negatives are all entities of the partition, but a part of an edge's own block (train/edges/own_rows.py).
The score of an edge's own entity is masked. The last chunk of a batch may be smaller. PBG's chunks have
num_batch_negs edges. Source: docs/formats/pbg_v1.md.

Shapes: B edges of a batch, S steps, C chunks of all steps, P positives per chunk, K candidates of a chunk
(its P positives, then the drawn entities), M candidates that are negatives.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from graphmill.config import Config, PbgConfig, RelationConfig
from graphmill.errors import ConfigError
from graphmill.model.abstract import AbstractNegativeSampler, ChunkedEdges
from graphmill.model.plug_ins import made
from graphmill.model.registry import NEGATIVE_SAMPLERS
from graphmill.vocab import Side
from train.edges.own_rows import EQUAL, OwnRows
from train.model.features import Bags


@dataclass(frozen=True)
class Batch:
    """Edges to train on, in equal steps; of one relation, unless relations are dynamic."""

    relation: int
    index: Mapping[Side, Tensor]  # [B] rows of the two partitions, or numbers of bags
    rel_B: Tensor | None  # with dynamic relations
    weight_B: Tensor  # weight of the edge times that of its relation
    bags: Mapping[Side, Bags] = field(default_factory=dict)  # lists of features of featurized sides
    popularity: Mapping[Side, Tensor] = field(default_factory=dict)  # [N] running sums of how often to draw
    own_rows: Mapping[Side, OwnRows] = field(default_factory=dict)
    num_steps: int = 1

    def __len__(self) -> int:
        return len(self.weight_B)

    @property
    def num_edges(self) -> float:
        """Number of edges of the batch."""
        return len(self)

    def num_entities(self, tables: Mapping[Side, Sized]) -> dict[Side, int]:
        """Count the entities to draw negatives from, for each side: rows of its table, or bags."""
        return {side: len(self.bags.get(side, table)) for side, table in tables.items()}

    def sum_weights(self, tables: Mapping[Side, Sized]) -> dict[Side, float]:
        """Add up the weights that these entities have as wrong answers, for each side."""
        counts = self.num_entities(tables).items()
        return {side: self.own_rows.get(side, EQUAL).sum_weights(num) for side, num in counts}


@dataclass(frozen=True)
class Block:
    """Chunks of equal size, and the candidates of each side."""

    relation: int
    rel_CP: Tensor | None
    weight_CP: Tensor
    rows: Mapping[Side, Tensor]  # [C, K] rows of the partition: the positives, then the drawn entities
    first_negative: Mapping[Side, int]  # 0 where the positives are each other's negatives, else P or K
    num_steps: int = 1  # the first C / S chunks belong to the first step, and so on

    @property
    def num_positives(self) -> int:
        """P, the positives per chunk."""
        return self.weight_CP.shape[1]

    def steps(self) -> Iterator["Block"]:
        """Yield the chunks of each step."""
        size = len(self.weight_CP) // self.num_steps
        for start in range(0, len(self.weight_CP), size):
            chunks = slice(start, start + size)
            rel_CP = None if self.rel_CP is None else self.rel_CP[chunks]
            rows = {side: rows_CK[chunks] for side, rows_CK in self.rows.items()}
            yield Block(self.relation, rel_CP, self.weight_CP[chunks], rows, self.first_negative)


@dataclass(frozen=True)
class Sampling:
    """Numbers of negatives per edge."""

    num_batch_negs: int
    num_uniform_negs: int
    sides: Collection[Side]  # that have negatives
    relations: Sequence[RelationConfig]
    chunk_edges: int = 1  # at least so many edges share their negatives
    sampler: AbstractNegativeSampler | None = None

    @classmethod
    def of_training(cls, config: Config) -> "Sampling":
        """The numbers of training."""
        settings = config.train
        sampler = None
        if settings.negative_sampler is not None:
            sampler = made(NEGATIVE_SAMPLERS, settings.negative_sampler, config.num_uniform_negs)
        num_negs = config.num_batch_negs, config.num_uniform_negs
        return cls(*num_negs, sides_with_negatives(config), config.relations, settings.chunk_edges, sampler)

    @classmethod
    def of_evaluation(cls, config: PbgConfig) -> "Sampling":
        """The numbers of the ranking of a bucket's held-out edges."""
        batch, uniform = config.eval_num_batch_negs, config.eval_num_uniform_negs
        return cls(
            config.num_batch_negs if batch is None else batch,
            config.num_uniform_negs if uniform is None else uniform,
            sides_with_negatives(config),
            config.relations,
        )

    def chunk_size(self, num_edges: int) -> int:
        """Choose the edges per chunk of a step on `num_edges`."""
        size = self.num_batch_negs or self.num_uniform_negs or num_edges
        return max(1, min(max(size, self.chunk_edges), num_edges))

    def drawing(self, share: float) -> "Sampling":
        """Draw a share of the uniform negatives, at least one; a plug-in draws as it does."""
        if share == 1 or not self.num_uniform_negs:
            return self
        return replace(self, num_uniform_negs=share_of(self.num_uniform_negs, share))

    def blocks(
        self, batch: Batch, tables: Mapping[Side, Sized], generator: torch.Generator
    ) -> Iterator[Block]:
        """Cut each step into chunks: a block of full-sized chunks, and a block of the last, smaller chunk."""
        edges, all_negs = len(batch) // batch.num_steps, self.relations[batch.relation].all_negs
        size = max(edges, self.chunk_edges) if all_negs else self.chunk_size(edges)
        full = edges // size * size
        for start, stop, chunk in ((0, full, size), (full, edges, edges - full)):
            if start < stop:
                yield self._block(batch, slice(start, stop), chunk, batch.num_entities(tables), generator)

    def _block(
        self,
        batch: Batch,
        edges: slice,
        chunk: int,
        num_rows: Mapping[Side, int],
        generator: torch.Generator,
    ) -> Block:
        all_negs = self.relations[batch.relation].all_negs

        def chunks(values_B: Tensor) -> Tensor:
            return values_B.view(batch.num_steps, -1)[:, edges].reshape(-1, chunk)

        weight_CP = chunks(batch.weight_B)
        num_chunks = len(weight_CP)
        rows: dict[Side, Tensor] = {}
        first: dict[Side, int] = {}
        for side in Side:
            positives_CP = chunks(batch.index[side])
            has_negatives, own = side in self.sides, batch.own_rows.get(side, EQUAL)
            if all_negs and has_negatives:
                drawn_CN = own.compared(num_rows[side], generator).expand(num_chunks, -1)
            elif self.sampler is None or not has_negatives:
                shape = num_chunks, self.num_uniform_negs * has_negatives
                drawn_CN = _draw(num_rows[side], shape, batch.popularity.get(side), own, generator)
            else:
                index = {end: chunks(batch.index[end]) for end in Side}
                rel = None if batch.rel_B is None else chunks(batch.rel_B)
                chunked = ChunkedEdges(index[Side.LHS], index[Side.RHS], rel, weight_CP, batch.relation)
                drawn_CN = sample(self.sampler, chunked, side, num_rows[side], generator)
            in_batch = self.num_batch_negs if has_negatives and not all_negs else 0
            first[side], again = in_batch_negatives(in_batch, chunk)
            repeated_CP = positives_CP[:, :again]
            rows[side] = torch.cat([positives_CP, repeated_CP, drawn_CN.to(positives_CP.device)], dim=1)
        rel_CP = None if batch.rel_B is None else chunks(batch.rel_B)
        return Block(batch.relation, rel_CP, weight_CP, rows, first, batch.num_steps)


def sample(
    sampler: AbstractNegativeSampler,
    edges: ChunkedEdges,
    side: Side,
    num_rows: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw negatives by a plug-in, int64 [C, K], and check what it has drawn."""
    drawn_CK = sampler.sample(edges, side, num_rows, generator)
    drawn = type(drawn_CK).__name__
    if isinstance(drawn_CK, Tensor):
        drawn = f"{drawn_CK.dtype} {tuple(drawn_CK.shape)}"
    if not drawn.startswith(f"torch.int64 ({len(edges.lhs)}, ") or drawn_CK.dim() != 2:
        raise ConfigError(
            f"train.negative_sampler: {type(sampler).__name__}: expected rows of torch.int64 and shape "
            f"({len(edges.lhs)}, K), found {drawn}"
        )
    if drawn_CK.numel() and not (int(drawn_CK.min()) >= 0 and int(drawn_CK.max()) < num_rows):
        raise ConfigError(
            f"train.negative_sampler: {type(sampler).__name__}: expected rows from 0 to {num_rows - 1}, "
            f"found {int(drawn_CK.min())} to {int(drawn_CK.max())}"
        )
    return drawn_CK


def share_of(num: int, share: float) -> int:
    """Take a share of a number, at least 1."""
    return max(1, round(num * share))


def in_batch_negatives(num_batch_negs: int, chunk: int) -> tuple[int, int]:
    """Return the first candidate that is a negative, and the number of edges that are repeated as negatives.

    All edges of a chunk are each other's negatives if num_batch_negs is as large; otherwise the first edges.
    """
    return (0, 0) if num_batch_negs >= chunk else (chunk, num_batch_negs)


def sides_with_negatives(config: PbgConfig) -> list[Side]:
    """The sides whose negatives are not disabled."""
    off = {Side.LHS: config.disable_lhs_negs, Side.RHS: config.disable_rhs_negs}
    return [side for side in Side if not off[side]]


def popularity(index_E: Tensor, num_rows: int, power: float) -> Tensor:
    """Compute running sums of (1 + count)^power, for rows' counts in `index_E`: float64 [N], on the CPU."""
    counts = torch.bincount(index_E.cpu(), minlength=num_rows)
    return (1 + counts.double()).pow_(power).cumsum(0)


def _draw(
    num_rows: int,
    shape: tuple[int, int],
    popularity_N: Tensor | None,
    own: OwnRows,
    generator: torch.Generator,
) -> Tensor:
    """Draw random rows: uniformly, or in proportion to their part of the running sums, times their weight."""
    if not num_rows or (popularity_N is None and own.weight == 1):
        return torch.randint(num_rows, shape, generator=generator)
    bounds = own.start, own.stop, num_rows
    start, stop, total = map(float, bounds)
    if popularity_N is not None:
        start, stop, total = (float(popularity_N[row - 1]) if row else 0.0 for row in bounds)
    rare = (1 - own.weight) * (stop - start)  # what own rows lack
    at = torch.rand(shape, generator=generator, dtype=torch.float64) * (total - rare)
    if rare:
        at += ((at - start) * (1 / own.weight - 1)).clamp_(0, rare)
    rows = at.long() if popularity_N is None else torch.searchsorted(popularity_N, at, right=True)
    return rows.clamp_max_(num_rows - 1)
