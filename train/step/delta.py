"""Training of a delta: which edges of a bucket are trained, and which rows stay where they are.

    added edges    of files that the earlier run did not have: all of them, in every epoch
    replay         of the other edges `train.replay` for each added one, drawn anew in every epoch: rows that
                   move go on to be answers and negatives of old queries
    known edges    other answers of the queries of these (1-vs-all): they are not trained, and are no wrong
                   answers either. Few of them are replayed, so nothing would hold them where they are.
    removed edges  the earlier run had them, and this run does not: their ends move apart, until they score
                   like pairs that were never edges
    still rows     no added or removed edge of the visit has them: nothing moves them, to the last bit
    new rows       of ids that the earlier run did not have; they are folded in (train/tables/folded_rows.py),
                   and their edges are left out. Against so few other edges they would learn that they are the
                   answer to everything.

The slope of the loss by the score of an edge says how far the edge is from certain: -1 for the least likely
edge, 0 for a certain one, with softmax and logistic. What is left of it, 1 + slope, pushes a removed edge
down. With softmax that is its probability p among all rows, as in -log(1 - p) (unlikelihood training,
arXiv:1908.04319): an edge that is not likely any more stays where it is. `train.removed_weight` multiplies
it, up to 1, the slope of an added edge that is not known yet. Candidates do not move.

    ranking    the slope is the share of candidates that it scores above by the margin

Shapes: E edges of a bucket, N rows of a table; C chunks, P removed edges of a chunk, M candidates.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.config.partitions import is_shared, key_of
from graphmill.formats.edge_buckets.origins import added_rows
from graphmill.model import losses
from graphmill.model.registry import LOSS_FUNCTIONS
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.edges.batches import TRAINED, EdgeTensors, Role
from train.edges.negative_sampling import Block
from train.edges.one_vs_all import has_queries
from train.model import optimizer
from train.step.plain import PlainStep, StepScores
from train.step.step import SideTables, Table, Tables

NUM_CANDIDATES = 1000  # that a removed edge is compared with


@dataclass(frozen=True)
class Delta:
    """Chooses the edges of a delta."""

    config: Config
    first_new: Mapping[str, Sequence[int]]  # of each folded type, the first new row of each partition

    def chosen(
        self, edges: EdgeTensors, iteration: Iteration, bucket: Bucket, rows: tuple[int, int]
    ) -> EdgeTensors:
        """Choose among `edges`, which are the rows (first, past the last) of a bucket, those to train on.

        Where training asks queries, the others are there too, as known edges.
        """
        first, last = rows
        added_E = torch.zeros(len(edges), dtype=torch.bool)
        for start, stop in added_rows(iteration.edge_path, bucket).tolist():
            added_E[max(start - first, 0) : max(min(stop, last) - first, 0)] = True
        usable_E = ~self._has_new(edges, bucket).cpu()
        others = torch.nonzero(usable_E & ~added_E)[:, 0]
        added_E &= usable_E
        replay = self.config.train.replay or 0.0
        count = min(len(others), math.floor(replay * int(added_E.sum()) + 0.5))
        generator = seeds.generator(self.config.seed, "replay", *iteration.place, *bucket, first)
        drawn = others[torch.randperm(len(others), generator=generator)[:count]]
        role_E = torch.full((len(edges),), Role.KNOWN, dtype=torch.int8)
        role_E[drawn] = Role.REPLAYED
        role_E[added_E] = Role.ADDED
        edges = replace(edges, role=role_E.to(edges.lhs.device))
        return edges if has_queries(self.config) else edges.of_role(*TRAINED)

    def used(self, parts: Sequence[EdgeTensors]) -> list[EdgeTensors]:
        """Leave out known edges of other queries than those of the trained edges of all parts of a visit."""
        if not has_queries(self.config):
            return list(parts)
        kept = [~part.has_role(Role.KNOWN) for part in parts]
        for side in Side:
            ends = [getattr(part, side).long() for part in parts]
            num_rows = max((int(end_E.max()) + 1 for end_E in ends if len(end_E)), default=0)
            is_asked_N = torch.zeros(num_rows, dtype=torch.bool, device=ends[0].device)
            for part, end_E in zip(parts, ends, strict=True):
                is_asked_N[end_E[part.has_role(*TRAINED)]] = True
            for kept_E, end_E in zip(kept, ends, strict=True):
                kept_E |= is_asked_N[end_E]
        return [part[torch.nonzero(kept_E)[:, 0]] for part, kept_E in zip(parts, kept, strict=True)]

    @contextmanager
    def freeze_untouched_rows(
        self, edges: EdgeTensors, tables: Tables, sides: Sequence[SideTables]
    ) -> Iterator[None]:
        """Keep the rows of tables that no added or removed edge touches where they are, within the block.

        `sides` are the tables of each relation. Adagrad does not move a row whose sum of squared gradients is
        infinite; the sums come back at the end. Rows that several workers share in training move as ever.
        """
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        try:
            for (name, _), table in tables.items():
                if is_shared(self.config, (name, 0)) and self.config.train.num_workers > 1:
                    continue
                rows = torch.nonzero(~self._touched(edges, sides, table))[:, 0]
                kept.append((table.sums, rows, table.sums.index_select(0, rows)))
                table.sums[rows] = math.inf
            yield
        finally:
            for sums, rows, before in kept:
                sums[rows] = before

    def _touched(self, edges: EdgeTensors, sides: Sequence[SideTables], table: Table) -> Tensor:
        """Mask of the rows of a table that an added or removed edge has, [N]."""
        moves_E = edges.has_role(Role.ADDED, Role.REMOVED)
        touched_N = torch.zeros(len(table), dtype=torch.bool, device=table.sums.device)
        for number, of_relation in enumerate(sides):
            own_E = moves_E if self.config.dynamic_relations else moves_E & (edges.rel == number)
            for side, side_table in of_relation.items():
                if side_table is table:
                    touched_N[getattr(edges, side)[own_E].long()] = True
        return touched_N

    def _has_new(self, edges: EdgeTensors, bucket: Bucket) -> Tensor:
        """Mask of the edges that have a folded-in entity, [E]."""
        has_new_E = torch.zeros(len(edges), dtype=torch.bool, device=edges.lhs.device)
        most = int(torch.iinfo(torch.int32).max)  # a type without new rows
        for side, index_E in ((Side.LHS, edges.lhs), (Side.RHS, edges.rhs)):
            types = (relation.entity_type(side) for relation in self.config.relations)
            keys = (key_of(self.config, name, side, bucket) for name in types)
            limits = [first[part] if (first := self.first_new.get(name)) else most for name, part in keys]
            if len(set(limits)) == 1 or self.config.dynamic_relations:
                has_new_E |= index_E >= limits[0]
            else:
                limit_R = torch.tensor(limits, dtype=index_E.dtype, device=index_E.device)
                has_new_E |= index_E >= limit_R.index_select(0, edges.rel)
        return has_new_E


def removing_step(config: Config, model: Model, adagrad: optimizer.Adagrad) -> PlainStep:
    """Make the step for removed edges: drawn candidates, and no cost but that of the edges.

    It moves nothing where the loss is a plug-in.
    """
    update = {
        "relations": tuple(relation.model_copy(update={"all_negs": False}) for relation in config.relations),
        "num_batch_negs": 0,
        "num_uniform_negs": NUM_CANDIDATES,
        "regularization_coef": 0.0,
    }
    neutral = {"negative_sampler": None, "relation_prediction": 0.0, "negative_power": 0.0}
    own = config.model_copy(update=update).with_section(config.train.model_copy(update=neutral))
    return PlainStep(own, model, adagrad, _slopes)


def _slopes(
    config: Config, scored: Mapping[Side, StepScores], block: Block, sum_weights: Mapping[Side, float]
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute the slopes of pos_CP of both sides; the loss is not known, and 0."""
    slopes: list[Tensor | None] = []
    for side in (Side.LHS, Side.RHS):
        pos_CP, neg_CPM = (tensor.detach() for tensor in scored[side])
        slopes += [_slope(config, pos_CP, neg_CPM, sum_weights[side]) * block.weight_CP, None]
    return block.weight_CP.new_zeros(()), slopes


def _slope(config: Config, pos_CP: Tensor, neg_CPM: Tensor, sum_weights: float) -> Tensor:
    weight, num_candidates = config.train.removed_weight, neg_CPM.shape[-1]
    if not num_candidates or not weight or config.loss_fn not in LOSS_FUNCTIONS.built_in:
        return torch.zeros_like(pos_CP)
    # with softmax, so many candidates stand for all rows of the table
    offset = math.log(sum_weights / NUM_CANDIDATES) if config.loss_fn == "softmax" else 0.0
    gradient = losses.loss_gradient(
        config.loss_fn, config.margin, pos_CP, neg_CPM + offset, torch.ones_like(pos_CP)
    )
    most = num_candidates if config.loss_fn == "ranking" else 1
    return (weight * (1 + gradient.pos_CP / most)).clamp_max(1)
