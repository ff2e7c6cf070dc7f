"""A sample of the run's train edges, from a few buckets, with the vectors of both ends.

Shapes: E edges, D dimension.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.edges import Graph, Numbers, Piece, Triples
from graphmill.ask.entities import EntityTable
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.formats import edge_buckets
from graphmill.run.auto_values import num_edges
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

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


def sample_edges(config: Config, tables: Mapping[str, EntityTable], num_relations: int) -> EdgeSample:
    """Read the beginnings of a few buckets, evenly spaced; the sample is empty if the edges are gone."""
    edge_path, buckets = config.split_path(TRAIN_SPLIT), _some_buckets(config)
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


def _some_buckets(config: Config) -> list[Bucket]:
    """At most MOST_BUCKETS of the run's buckets, evenly spaced."""
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    count = min(MOST_BUCKETS, num_lhs * num_rhs)
    places = ((2 * number + 1) * num_lhs * num_rhs // (2 * count) for number in range(count))
    return [Bucket(*divmod(place, num_rhs)) for place in places]


def _by_types(
    graph: Graph, tables: Mapping[str, EntityTable], edges: Triples
) -> dict[tuple[str, str], RelationEdges]:
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


def spread(num_rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Choose `count` evenly spaced numbers below `num_rows`, or all; the seed says where they begin."""
    if num_rows <= count:
        return np.arange(num_rows)
    return np.sort((seed % num_rows + np.arange(count) * num_rows // count) % num_rows)
