"""The frozen model that solves new ids: relations, samples of entities and edges, and priors.

Samples stand for all entities of a type and all edges of the run, the same for all ids. They are evenly
spaced, from seeded starts, and small: every task gets them, whatever the size of the run. Edges come from a
few buckets, with the vectors of both ends.

A prior says what is likely of an id before its edges are seen. The prior of a type is the mean of its
entities, and their standard deviation in each coordinate. The prior of a side of a relation is the mean of
the entities there, drawn towards that of the type as if `SHRINKAGE` edges were of an average entity.

Shapes: D dimension, M entities of a sample, N rows, E edges.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from graphmill import storage
from graphmill.ask.edges import Graph, Numbers, Piece, Triples
from graphmill.ask.entities import EntityTables
from graphmill.ask.fold_in.settings import FoldInOptions
from graphmill.ask.relation import Parameters, Relation, read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.formats import edge_buckets
from graphmill.model.parameters import global_key
from graphmill.run import seeds
from graphmill.run.auto_values import num_edges
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

PRIOR_ROWS = 4096
"""Entities of a type that its prior, and sums over all entities that are computed once, come from."""

SHRINKAGE = 8.0
_LEAST_SHARE = 0.1
_LEAST_SPREAD = 1e-6

MOST_BUCKETS = 4
MOST_EDGES = 1 << 17
_FEWEST = 64

log = logging.getLogger("graphmill")


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges of relations that join the same types.

    Attributes:
        relation_E: numbers of the relations.
        weight_E: weights of the edges, without those of the relations.
        vectors: of the ends, [E, D]; a featurized side is not there.
        stands_for: number of edges of the run for each of these.
    """

    relation_E: Numbers
    weight_E: Floats
    vectors: Mapping[Side, Floats]
    stands_for: float = 1.0

    def __len__(self) -> int:
        return len(self.relation_E)


EdgeSample = Mapping[tuple[str, str], RelationEdges]
"""Edges by types of lhs and rhs."""


def sample_edges(config: Config, tables: EntityTables, num_relations: int) -> EdgeSample:
    """Read the beginnings of a few buckets, evenly spaced; the sample is empty if the edges are gone."""
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    count = min(MOST_BUCKETS, num_lhs * num_rhs)
    places = ((2 * number + 1) * num_lhs * num_rhs // (2 * count) for number in range(count))
    edge_path, buckets = config.split_path(TRAIN_SPLIT), [Bucket(*divmod(n, num_rhs)) for n in places]
    uris = [edge_buckets.bucket_uri(edge_path, bucket) for bucket in buckets]
    if missing := [uri for uri in uris if not storage.exists(uri)]:
        log.warning(
            "fold-in: %s: there are no such edges; priors are those of types, and new ids may be found too "
            "often by queries of others",
            missing[0],
        )
        return {}
    graph = Graph(config, {name: table.num_rows for name, table in tables.items()}, num_relations)
    most = MOST_EDGES // len(buckets)
    counts = edge_buckets.count_all(edge_path, buckets)
    pieces = [Piece(edge_path, bucket, 0, min(count, most)) for bucket, count in counts.items()]
    read = [edges for piece in pieces for edges in graph.read(piece, takes_features=True)]
    by_types = _by_types(graph, tables, Triples.concatenated(read))
    total = sum(map(num_edges, config.edge_paths))
    factor = total / max(sum(map(len, by_types.values())), 1)
    return {types: replace(edges, stands_for=factor) for types, edges in by_types.items()}


def thinned(sample: EdgeSample, count: int, seed: int) -> EdgeSample:
    """Keep about `count` edges in all, and at least some of each pair of types; each stands for more."""
    total = sum(map(len, sample.values()))
    kept = {}
    for types, edges in sample.items():
        share = max(-(-count * len(edges) // max(total, 1)), _FEWEST)
        rows = spread(len(edges), share, seed)
        if len(rows):
            kept[types] = RelationEdges(
                edges.relation_E[rows],
                edges.weight_E[rows],
                {side: vectors_ED[rows] for side, vectors_ED in edges.vectors.items()},
                edges.stands_for * len(edges) / len(rows),
            )
    return kept


def _by_types(graph: Graph, tables: EntityTables, edges: Triples) -> dict[tuple[str, str], RelationEdges]:
    """Part edges by the types of their ends, and read the vectors of these."""
    types = list(zip(*map(graph.types, Side), strict=True))
    by_pair = {}
    for pair in dict.fromkeys(types):
        of_types = edges[np.array([own == pair for own in types])[graph.static(edges.rel)]]
        vectors = {
            side: tables[name].gather(of_types.ends(side))
            for side, name in zip(Side, pair, strict=True)
            if name in tables
        }
        by_pair[pair] = RelationEdges(of_types.rel, of_types.weights(), vectors)
    return by_pair


def spread(num_rows: int, count: int, seed: int) -> Numbers:
    """Choose `count` evenly spaced numbers below `num_rows`, or all; the seed says where they begin."""
    if num_rows <= count:
        return np.arange(num_rows)
    return np.sort((seed % num_rows + np.arange(count) * num_rows // count) % num_rows)


@dataclass(frozen=True, eq=False)
class TypePrior:
    """Mean and standard deviation of a type's vectors, [D] each."""

    mean_D: Floats
    spread_D: Floats

    @classmethod
    def of(cls, vectors_ND: Floats) -> "TypePrior":
        """Compute the prior from some vectors of the type."""
        if not len(vectors_ND):
            width = vectors_ND.shape[1]
            return cls(np.zeros(width, np.float32), np.ones(width, np.float32))
        spread_D = vectors_ND.std(0, dtype=np.float64)
        # A coordinate that never varies must not hold the id for ever.
        least = max(float(np.sqrt(np.square(spread_D).mean())) * _LEAST_SHARE, _LEAST_SPREAD)
        return cls(
            vectors_ND.mean(0, dtype=np.float64).astype(np.float32),
            np.maximum(spread_D, least).astype(np.float32),
        )


RelationPriors = Mapping[tuple[int, Side], Floats]
"""Mean [D] of the entities on a side of a relation, less the mean of their type; not of all sides."""


def relation_priors(sample: EdgeSample, priors: Mapping[str, TypePrior]) -> RelationPriors:
    """Compute the priors of the sides of all relations in the sample."""
    offsets: dict[tuple[int, Side], Floats] = {}
    for types, edges in sample.items():
        order = np.argsort(edges.relation_E, kind="stable")
        numbers, first, num = np.unique(edges.relation_E[order], return_index=True, return_counts=True)
        for side, entity_type in zip(Side, types, strict=True):
            if side not in edges.vectors or not len(edges):
                continue
            offset_ED = (edges.vectors[side] - priors[entity_type].mean_D)[order].astype(np.float64)
            mean_RD = np.add.reduceat(offset_ED, first, axis=0) / (num[:, None] + SHRINKAGE)
            offsets |= {
                (number, side): offset_D.astype(np.float32)
                for number, offset_D in zip(numbers.tolist(), mean_RD, strict=True)
            }
    return offsets


@dataclass(frozen=True, eq=False)
class EntitySample:
    """Entities that stand for all of their type.

    Attributes:
        numbers: of the first M rows, ascending.
        vectors_MD: that each edge is compared with.
        more_ND: PRIOR_ROWS rows, for sums that are computed once.
    """

    numbers: Tensor
    vectors_MD: Tensor
    more_ND: Tensor
    num_entities: int


@dataclass(frozen=True, eq=False)
class FrozenModel:
    """Settings and samples that a task needs to solve ids.

    Attributes:
        parameters: those of the checkpoint, by key.
        samples: by type, of the types that have vectors.
        priors: likewise.
        edges: some known edges, whose queries should not find new ids.
    """

    run: TrainedRun
    options: FoldInOptions
    parameters: Parameters
    samples: Mapping[str, EntitySample]
    priors: Mapping[str, TypePrior]
    relation_priors: RelationPriors
    edges: EdgeSample

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.run.config

    @cached_property
    def _relations(self) -> dict[int, Relation]:
        return {}

    def relation(self, number: int) -> Relation:
        """Return a relation, with tensors as parameters."""
        if number not in self._relations:
            self._relations[number] = relation_of(self.run, self.parameters, number).with_tensors()
        return self._relations[number]

    def prior_means(self, entity_type: str, relation_E: Numbers, is_rhs_E: Numbers) -> Floats:
        """The prior means [E, D] of sides of relations, on which entities of this type are."""
        keys, inverse = np.unique(relation_E * 2 + is_rhs_E, return_inverse=True)
        means = np.repeat(self.priors[entity_type].mean_D[None], len(keys), 0)
        for place, key in enumerate(keys.tolist()):
            offset_D = self.relation_priors.get((key // 2, Side.RHS if key % 2 else Side.LHS))
            if offset_D is not None:
                means[place] += offset_D
        mean_ED: Floats = means[inverse]
        return mean_ED

    def type_of(self, number: int, side: Side) -> str:
        """Type of the entities on a side of a relation."""
        return self.config.entry(number).entity_type(side)

    def global_of(self, entity_type: str) -> Tensor | None:
        """The vector that is added to all embeddings of a type, if there is one."""
        global_D = self.parameters.get(global_key(entity_type))
        return None if global_D is None else torch.from_numpy(np.array(global_D))

    @property
    def temperature(self) -> float:
        """Number of models that the checkpoint joins: scores are the sums of theirs."""
        return float(self.config.train.ensemble)

    def num_negatives(self, number: int, side: Side) -> int:
        """Entities that training has compared an edge's own on this side with."""
        if self.config.entry(number).all_negs:
            return self.samples[self.type_of(number, side)].num_entities
        return max(self.config.num_batch_negs + self.config.num_uniform_negs, 1)

    def is_asked(self, side: Side) -> bool:
        """Tell whether training has asked for this side of edges."""
        return not (self.config.disable_lhs_negs if side is Side.LHS else self.config.disable_rhs_negs)

    def relation_weights(self, relation_E: Numbers) -> Floats:
        """Weights of the relations of edges."""
        weights = np.array([relation.weight for relation in self.config.relations], np.float32)
        weight_E: Floats = weights[np.zeros_like(relation_E) if self.config.dynamic_relations else relation_E]
        return weight_E


def read_model(trained: TrainedRun, tables: EntityTables, options: FoldInOptions) -> FrozenModel:
    """Read the model, and the rows of its samples; `tables` are those of `solvable_types`."""
    config = trained.config
    parameters = read_parameters(trained, allow_non_finite=trained.allow_non_finite)
    seed_of = partial(seeds.derived, config.seed, "fold-in")
    samples, priors = {}, {}
    for name, table in tables.items():
        chosen = spread(table.num_entities, PRIOR_ROWS, seed_of(name))
        vectors_ND = table.gather(chosen)
        priors[name] = TypePrior.of(vectors_ND)
        few = spread(len(chosen), options.num_candidates, seed_of(name, "candidates"))
        rows = torch.from_numpy(vectors_ND)
        samples[name] = EntitySample(torch.from_numpy(chosen[few]), rows[few], rows, table.num_entities)
    edges = sample_edges(config, tables, trained.num_relations)
    of_relations = relation_priors(edges, priors)
    few_edges = thinned(edges, options.num_known_edges, seed_of("edges"))
    return FrozenModel(trained, options, parameters, samples, priors, of_relations, few_edges)
