"""Solves new ids: takes a fixed number of gradient steps for each, independent of all others. A Dask task
solves those of one type and group. Its file: docs/formats/embeddings.md.

Steps start at the prior mean. Their length is that of Barzilai and Borwein (IMA Journal of Numerical Analysis
8, 1988), in units of the spread. The best of the points that were tried is the result.

The objective of an id adds up the loss of its edges, as training scores them; that of queries that should not
find it; the regularizer N3; and a prior. The prior takes each coordinate as normally distributed around the
prior mean, with the spread of the type. The mean is that of the sides of relations on which the id has edges.

Confidence is n / (n + CONFIDENT_EDGES). An edge adds to n as much as it exceeds chance: 1 if the id finds the
known end before all others of the sample, 0 if it finds half of them before it.

Shapes: B ids of a tile, D dimension, E edges, K rows.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from graphmill.ask.entities import EntityTables, Numbers
from graphmill.ask.fold_in.comparison import beaten_shares, chunks, loss_and_gradient
from graphmill.ask.fold_in.frozen import FrozenModel
from graphmill.ask.fold_in.new_edges import NewEdges, parted_rows, side_of
from graphmill.ask.fold_in.others import ROWS, OtherQueries, loss_as_others, other_queries
from graphmill.ask.fold_in.settings import ignores_regularizer
from graphmill.ask.fold_in.sorting import SCHEMA, Sorting, first_edges, read_batch
from graphmill.ask.relation import check_magnitude
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.formats import remapped
from graphmill.model import operators
from graphmill.model.built_in import split
from graphmill.model.losses import n3, n3_weights
from graphmill.model.registry import LOSS_FUNCTIONS
from graphmill.storage import Checksums

FIRST_STEP = 0.5
LONGEST_STEP = 1.0
"""Lengths in spreads of the type."""
CONFIDENT_EDGES = 5.0
_TINY = 1e-20

COLUMNS = (
    pa.field("confidence", pa.float32(), nullable=False),
    pa.field("num_edges", pa.int32(), nullable=False),
)
MOST_FLOATS = 1 << 24
"""Coordinates of known ends that are in memory at a time, but for copies."""


class TileSizes(NamedTuple):
    """Sizes of the arrays, on which the last bits of a result depend, and on nothing else.

    Attributes:
        ids: B, of a tile; a multiple of `rows`.
        edges: at which a tile ends, though it has fewer ids.
        rows: of a chunk.
    """

    ids: int
    edges: int
    rows: int


OF_JOB = TileSizes(4096, 1 << 16, 1024)
OF_CALL = TileSizes(1, 1 << 12, 8)


class Objective:
    """The objective of the ids of a tile, which `sizes.ids` rows stand for, the last without edges.

    Attributes:
        mean_BD: prior means.
        spread_D: standard deviations of the type's vectors.
        tells_losses: whether losses of ids can be compared; a loss of the user's is a sum over all edges.
    """

    def __init__(
        self,
        model: FrozenModel,
        entity_type: str,
        edges: NewEdges,
        mentions: NewEdges,
        sizes: TileSizes,
        others: Sequence[OtherQueries],
    ) -> None:
        self._model, self._sizes, self._others = model, sizes, others
        self.tells_losses = model.config.loss_fn in LOSS_FUNCTIONS.built_in
        self._chunks = chunks(model, entity_type, edges, sizes.rows)
        self._global_D = model.global_of(entity_type)
        prior = model.priors[entity_type]
        self.spread_D = torch.from_numpy(prior.spread_D)
        self.mean_BD = torch.from_numpy(prior.mean_D).repeat(sizes.ids, 1)
        self._has_edges_B1 = torch.zeros(sizes.ids, 1)
        for stands in (mentions, edges):  # edges win
            id_E = torch.from_numpy(stands.id_E)
            count_B1 = torch.bincount(id_E, minlength=sizes.ids).float()[:, None]
            means_ED = model.prior_means(entity_type, stands.relation_E, stands.is_rhs_E)
            sum_BD = torch.zeros_like(self.mean_BD).index_add_(0, id_E, torch.from_numpy(means_ED))
            self._has_edges_B1 = (count_B1 > 0).float()
            self.mean_BD = torch.where(count_B1 > 0, sum_BD / count_B1.clamp_min(1), self.mean_BD)
        self._regularized = self._regularizer_weights(edges)

    def __call__(self, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the objective of each id [B], and its gradient [B, D]."""
        strength = self._model.options.prior_strength
        gap_BD = (vectors_BD - self.mean_BD) / self.spread_D
        loss_B = strength / 2 * gap_BD.square().sum(1)
        slope_BD = strength * gap_BD / self.spread_D
        for chunk in self._chunks:
            loss_E, slope_ED = loss_and_gradient(self._model, chunk, vectors_BD)
            id_E = chunk.id_E[: chunk.num]
            loss_B.index_add_(0, id_E, loss_E[: chunk.num])
            slope_BD.index_add_(0, id_E, slope_ED[: chunk.num])
        rows = min(self._sizes.rows, ROWS)
        for start in range(0, len(vectors_BD), rows):
            block = slice(start, start + rows)
            has_edges_B1 = self._has_edges_B1[block]
            if not has_edges_B1.any():
                continue
            for other in self._others:
                loss, slope = loss_as_others(self._model, other, vectors_BD[block])
                loss_B[block] += loss * has_edges_B1[:, 0]
                slope_BD[block] += slope * has_edges_B1
        for num_parts, weight_B1 in self._regularized.items():
            own_BD = vectors_BD if self._global_D is None else vectors_BD - self._global_D
            weight = n3_weights(weight_B1, own_BD, has_popularity=self._model.config.train.popularity)
            loss, slopes = n3(split(own_BD, num_parts), weight)
            loss_B += loss
            slope_BD += torch.cat(slopes, -1)
        return loss_B, slope_BD

    @property
    def has_slopes(self) -> bool:
        """Tell whether all gradients are known without autograd."""
        of_chunks = all(chunk.relation.has_slopes for chunk in self._chunks)
        return of_chunks and all(other.relation.has_slopes for other in self._others)

    def allowed(self, vectors_BD: Tensor) -> Tensor:
        """Shorten embeddings that are longer than max_norm, as training does."""
        if self._model.config.max_norm is None:
            return vectors_BD
        own_BD = vectors_BD if self._global_D is None else vectors_BD - self._global_D
        short_BD: Tensor = own_BD * (self._model.config.max_norm / _length(own_BD)).clamp_max(1)
        return short_BD if self._global_D is None else short_BD + self._global_D

    def confidence(self, vectors_BD: Tensor) -> Tensor:
        """Compute the confidence of each id, [B]."""
        evidence_B = torch.zeros(len(vectors_BD))
        with torch.no_grad():
            for chunk in self._chunks:
                share_E = beaten_shares(chunk, vectors_BD)[: chunk.num]
                evidence_B.index_add_(0, chunk.id_E[: chunk.num], (2 * share_E - 1).clamp_min(0))
        confidence_B: Tensor = evidence_B / (evidence_B + CONFIDENT_EDGES)
        return confidence_B

    def _regularizer_weights(self, edges: NewEdges) -> dict[int, Tensor]:
        """Weight of each id's N3 [B, 1], by the number of parts that its vector has."""
        model, weights = self._model, {}
        coefficient = model.config.regularization_coef
        if not coefficient or ignores_regularizer(model.config):
            return {}
        position_E = np.zeros_like(edges.relation_E) if model.config.dynamic_relations else edges.relation_E
        names = [relation.operator for relation in model.config.relations]
        parts_E = np.array([operators.operator_of(name).parts for name in names])[position_E]
        # With an operator for each side, an edge has two scores: each is an example.
        reciprocal = model.config.train.reciprocal_relations
        examples = 2 if model.config.dynamic_relations or reciprocal else 1
        for num_parts in np.unique(parts_E).tolist():
            id_E = torch.from_numpy(edges.id_E[parts_E == num_parts])
            count_B = torch.bincount(id_E, minlength=self._sizes.ids).float()
            weights[num_parts] = (count_B * (coefficient * examples))[:, None]
        return weights


class Solution(NamedTuple):
    """Vectors of ids, float32 [B, D], and their confidence, float32 [B] from 0 to 1."""

    vectors_BD: Floats
    confidence_B: Floats


class Solver:
    """Solves ids of one type."""

    def __init__(self, model: FrozenModel, entity_type: str, sizes: TileSizes = OF_JOB) -> None:
        self._model, self._type, self._sizes = model, entity_type, sizes
        self._dimension = len(model.priors[entity_type].mean_D)

    @cached_property
    def _others(self) -> list[OtherQueries]:
        return other_queries(self._model, self._type)

    def solve(self, edges: NewEdges, num_ids: int, mentions: NewEdges | None = None) -> Solution:
        """Solve ids; one without edges has the prior of its mentions, else of the type, and confidence 0."""
        mentions = edges.take(slice(0)) if mentions is None else mentions
        parts = [self._tile(*tile) for tile in self._tiles(edges, mentions, num_ids)]
        if not parts:
            return Solution(np.empty((0, self._dimension), np.float32), np.empty(0, np.float32))
        return Solution(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _tiles(
        self, edges: NewEdges, mentions: NewEdges, num_ids: int
    ) -> Iterator[tuple[NewEdges, NewEdges, int]]:
        """Cut the edges and mentions at ids into tiles; yield each with its number of ids."""
        ids_B = np.arange(num_ids + 1)
        first_B = np.searchsorted(edges.id_E, ids_B) + np.searchsorted(mentions.id_E, ids_B)
        start = 0
        while start < num_ids:
            by_edges = int(np.searchsorted(first_B, first_B[start] + self._sizes.edges, side="right")) - 1
            stop = min(max(by_edges, start + 1), start + self._sizes.ids, num_ids)
            yield edges.of_ids(start, stop), mentions.of_ids(start, stop), stop - start
            start = stop

    def _tile(self, edges: NewEdges, mentions: NewEdges, num_ids: int) -> Solution:
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


def solve_group(
    model: FrozenModel,
    sorting: Sorting,
    sorted_uris: Sequence[str],
    entity_type: str,
    group: int,
    folder: str,
) -> tuple[dict[str, int], Checksums]:
    """Write the vectors of one group; return counts of ids, of ids without edges, of edges, and checksums."""
    batches = [read_batch(sorting, uri, entity_type, group) for uri in sorted_uris]
    ids, edges, mentions = parted_rows(first_edges(pa.Table.from_batches(batches, SCHEMA), sorting.max_edges))
    dimension = model.config.entity_dimension(entity_type)
    counts = np.bincount(edges.id_E, minlength=len(ids)).astype(np.int32)
    checksums: Checksums = {}
    new_part = remapped.new_part(folder, entity_type, group, dimension, more=COLUMNS, checksums=checksums)
    with new_part as part:
        for start, solution in solutions(model, sorting.tables, entity_type, edges, mentions, len(ids)):
            own = slice(start, start + len(solution.vectors_BD))
            part.append(ids[own], solution.vectors_BD, pa.array(solution.confidence_B), pa.array(counts[own]))
    return {
        "num_ids": len(ids),
        "num_without_edges": int((counts == 0).sum()),
        "num_edges": len(edges.id_E),
    }, checksums


def solutions(
    model: FrozenModel,
    tables: EntityTables,
    entity_type: str,
    edges: NewEdges,
    mentions: NewEdges,
    num_ids: int,
) -> Iterator[tuple[int, Solution]]:
    """Solve ids in blocks; yield the first id of a block with the solution. `edges` have no vectors yet."""
    solver = Solver(model, entity_type)
    dimension = model.config.entity_dimension(entity_type)
    for start, stop in _blocks(edges.id_E, num_ids, MOST_FLOATS // dimension):
        some = with_vectors(model, tables, edges.of_ids(start, stop), dimension)
        solution = solver.solve(some, stop - start, mentions.of_ids(start, stop))
        where = f"{model.run.checkpoint_path}: vectors of new ids of {entity_type!r}"
        check_magnitude(solution.vectors_BD, where)
        yield start, solution
        progress.stop_if_cancelled()


def _blocks(id_E: Numbers, num_ids: int, most_edges: int) -> Iterator[tuple[int, int]]:
    """Cut ids into blocks, whose known ends are read together: a reading may pass all rows.

    A block has whole tiles, or fewer ids where these have very many edges.
    """
    start = 0
    while start < num_ids:
        first = np.searchsorted(id_E, start)
        stop = num_ids if first + most_edges >= len(id_E) else max(int(id_E[first + most_edges]), start + 1)
        if stop < num_ids:
            stop -= (stop - start) % OF_JOB.ids if stop - start > OF_JOB.ids else 0
        yield start, stop
        start = stop


def with_vectors(model: FrozenModel, tables: EntityTables, edges: NewEdges, dimension: int) -> NewEdges:
    """Add the vectors of the known ends."""
    keys, inverse = np.unique(edges.relation_E * 2 + edges.is_rhs_E, return_inverse=True)
    types = np.array([model.type_of(key // 2, side_of(key % 2).other) for key in keys.tolist()], object)
    known_ED = np.zeros((len(edges.id_E), dimension), np.float32)
    for name in dict.fromkeys(types.tolist()):
        here = np.flatnonzero((types == name)[inverse])
        known_ED[here] = tables[name].gather(edges.known_E[here])
    check_magnitude(known_ED, "vectors of known ids")
    return edges._replace(known_ED=known_ED)
