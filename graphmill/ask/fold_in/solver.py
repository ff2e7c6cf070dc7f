"""Solves new ids: a fixed number of gradient steps for each, independent of all others.

Steps start at the prior mean. Their length is that of Barzilai and Borwein (IMA Journal of Numerical Analysis
8, 1988), in units of the spread. The best of the points that were tried is the result.

Shapes: B ids of a tile, D dimension.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.fold_in.frozen import FrozenModel
from graphmill.ask.fold_in.new_edges import NO_MENTIONS, Mentions, NewEdges
from graphmill.ask.fold_in.objective import Objective, Sizes
from graphmill.ask.fold_in.others import OtherQueries, other_queries
from graphmill.checkpoints import Floats

FIRST_STEP = 0.5
LONGEST_STEP = 1.0
"""Lengths in spreads of the type."""
_TINY = 1e-20

OF_JOB = Sizes(4096, 1 << 16, 1024)
OF_CALL = Sizes(1, 1 << 12, 8)


class Solution(NamedTuple):
    """Vectors of ids, float32 [B, D], and their confidence, float32 [B] from 0 to 1."""

    vectors_BD: Floats
    confidence_B: Floats


class Solver:
    """Solves ids of one type.

    Raises:
        ConfigError: the checkpoint lacks a parameter of a relation.
    """

    def __init__(self, model: FrozenModel, entity_type: str, sizes: Sizes = OF_JOB) -> None:
        self._model, self._type, self._sizes = model, entity_type, sizes
        self._dimension = len(model.priors[entity_type].mean_D)

    @cached_property
    def _others(self) -> list[OtherQueries]:
        return other_queries(self._model, self._type)

    def solve(self, edges: NewEdges, num_ids: int, mentions: Mentions = NO_MENTIONS) -> Solution:
        """Solve ids; one without edges has the prior of its mentions, else of the type, and confidence 0."""
        parts = [self._tile(*tile) for tile in self._tiles(edges, mentions, num_ids)]
        if not parts:
            return Solution(np.empty((0, self._dimension), np.float32), np.empty(0, np.float32))
        return Solution(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _tiles(
        self, edges: NewEdges, mentions: Mentions, num_ids: int
    ) -> Iterator[tuple[NewEdges, Mentions, int]]:
        """Cut the edges at ids into tiles; yield each with its mentions and its number of ids."""
        first_B = np.searchsorted(edges.id_E, np.arange(num_ids + 1))
        start = 0
        while start < num_ids:
            by_edges = int(np.searchsorted(first_B, first_B[start] + self._sizes.edges, side="right")) - 1
            stop = min(max(by_edges, start + 1), start + self._sizes.ids, num_ids)
            tile = edges.take(slice(int(first_B[start]), int(first_B[stop])))
            some = slice(*np.searchsorted(mentions.id_K, [start, stop]).tolist())
            own = Mentions(*(column[some] for column in mentions))
            yield tile._replace(id_E=tile.id_E - start), own._replace(id_K=own.id_K - start), stop - start
            start = stop

    def _tile(self, edges: NewEdges, mentions: Mentions, num_ids: int) -> Solution:
        objective = Objective(self._model, self._type, edges, mentions, self._sizes, self._others)
        with torch.inference_mode(objective.has_slopes):  # a sixth of the time
            vectors_BD = minimised(objective, self._model.options.num_steps)
            confidence_B = objective.confidence(vectors_BD)
        return Solution(vectors_BD[:num_ids].numpy(), confidence_B[:num_ids].numpy())


def minimised(objective: Objective, num_points: int) -> Tensor:
    """Minimise each id's objective on its own; return the best of so many points, or the last, [B, D]."""
    spread_D, length = objective.spread_D, objective.spread_D.norm()
    point_BD = best_BD = objective.mean_BD
    loss_B, slope_BD = objective(point_BD)
    lowest_B, step_B1 = loss_B, FIRST_STEP * length / _length(slope_BD * spread_D.square())
    for _ in range(1, num_points):
        move_BD = -step_B1 * slope_BD * spread_D.square()
        moved_BD = objective.allowed(point_BD + move_BD)
        loss_B, next_BD = objective(moved_BD)
        is_lower_B = loss_B < lowest_B if objective.tells_losses else torch.isfinite(moved_BD).all(1)
        lowest_B = torch.where(is_lower_B, loss_B, lowest_B)
        best_BD = torch.where(is_lower_B[:, None], moved_BD, best_BD)
        bend_BD = (next_BD - slope_BD) * spread_D
        along_B1 = ((moved_BD - point_BD) / spread_D * bend_BD).sum(1, keepdim=True)
        bent_B1 = bend_BD.square().sum(1, keepdim=True).clamp_min(_TINY)
        step_B1 = torch.where(along_B1 > 0, along_B1 / bent_B1, step_B1)
        step_B1 = torch.minimum(step_B1, LONGEST_STEP * length / _length(next_BD * spread_D.square()))
        point_BD, slope_BD = moved_BD, next_BD
    return best_BD


def _length(vectors_BD: Tensor) -> Tensor:
    length_B1: Tensor = vectors_BD.norm(dim=1, keepdim=True).clamp_min(_TINY)
    return length_B1
