"""A sample of the run's train edges, from a few buckets, with the vectors of both ends.

Shapes: E edges, D dimension.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.entities import EntityTable, Numbers
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.errors import FormatError
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
    missing = [uri for each in buckets if not storage.exists(uri := edge_buckets.bucket_uri(edge_path, each))]
    if missing:
        log.warning(
            "fold-in: %s: there are no such edges; priors are those of types, and new ids may be found too "
            "often by queries of others",
            missing[0],
        )
        return {}
    parts: dict[tuple[str, str], list[RelationEdges]] = {}
    for bucket in buckets:
        most = MOST_EDGES // len(buckets)
        edges = edge_buckets.read_bucket(edge_path, bucket, 0, most, takes_features=True)
        uri = edge_buckets.bucket_uri(edge_path, bucket)
        if len(edges) and edges.rel.max() >= num_relations:
            raise FormatError(f"{uri}: expected {num_relations} relations, found number {edges.rel.max()}")
        for types, rows in _by_types(config, edges).items():
            parts.setdefault(types, []).append(_with_vectors(tables, types, bucket, edges, rows, uri))
    by_types = {types: _joined(found) for types, found in parts.items()}
    total = sum(map(num_edges, config.edge_paths))
    factor = total / max(sum(map(len, by_types.values())), 1)
    return {types: replace(each, stands_for=factor) for types, each in by_types.items()}


def thinned(sample: EdgeSample, count: int, seed: int) -> EdgeSample:
    """Keep about `count` edges in all, and at least some of each pair of types; each stands for more."""
    total = sum(map(len, sample.values()))
    found = {}
    for types, edges in sample.items():
        share = max(-(-count * len(edges) // max(total, 1)), _FEWEST)
        rows = spread(len(edges), share, seed)
        if len(rows):
            found[types] = RelationEdges(
                edges.relation_E[rows],
                edges.weight_E[rows],
                {side: vectors_ED[rows] for side, vectors_ED in edges.vectors.items()},
                edges.stands_for * len(edges) / len(rows),
            )
    return found


def _some_buckets(config: Config) -> list[Bucket]:
    """At most MOST_BUCKETS of the run's buckets, evenly spaced."""
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    count = min(MOST_BUCKETS, num_lhs * num_rhs)
    places = ((2 * number + 1) * num_lhs * num_rhs // (2 * count) for number in range(count))
    return [Bucket(*divmod(place, num_rhs)) for place in places]


def _by_types(config: Config, edges: edge_buckets.Edges) -> dict[tuple[str, str], Numbers]:
    if config.dynamic_relations:
        return {(config.relations[0].lhs, config.relations[0].rhs): np.arange(len(edges))}
    types = [(relation.lhs, relation.rhs) for relation in config.relations]
    distinct = list(dict.fromkeys(types))
    place_E = np.array([distinct.index(each) for each in types])[edges.rel]
    return {each: np.flatnonzero(place_E == place) for place, each in enumerate(distinct)}


def _with_vectors(
    tables: Mapping[str, EntityTable],
    types: tuple[str, str],
    bucket: Bucket,
    edges: edge_buckets.Edges,
    rows: Numbers,
    uri: str,
) -> RelationEdges:
    vectors: dict[Side, Floats] = {}
    sides = zip(Side, types, bucket, (edges.lhs, edges.rhs), strict=True)
    for side, entity_type, partition, ends in sides:
        if entity_type not in tables:
            continue
        table, found = tables[entity_type], ends[rows].astype(np.int64)
        own = partition if len(table.parts) > 1 else 0
        if len(found) and found.max() >= table.parts[own].num_rows:
            raise FormatError(
                f"{uri}: expected entities below {table.parts[own].num_rows} on the {side} side, as "
                f"partition {own} of {entity_type!r} has, found {found.max()}"
            )
        vectors[side] = table.gather(found + table.first[own])
    weight = np.ones(len(edges), np.float32) if edges.weight is None else edges.weight
    return RelationEdges(edges.rel[rows].astype(np.int64), weight[rows], vectors)


def _joined(parts: list[RelationEdges]) -> RelationEdges:
    first = parts[0]
    return RelationEdges(
        np.concatenate([part.relation_E for part in parts]),
        np.concatenate([each.weight_E for each in parts]),
        {side: np.concatenate([each.vectors[side] for each in parts]) for side in first.vectors},
    )


def spread(num_rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Choose `count` evenly spaced numbers below `num_rows`, or all; the seed says where they begin."""
    if num_rows <= count:
        return np.arange(num_rows)
    return np.sort((seed % num_rows + np.arange(count) * num_rows // count) % num_rows)
