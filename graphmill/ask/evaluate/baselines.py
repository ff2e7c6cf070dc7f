"""Metrics of rankings without a model: a random order, the most popular candidates first, those of neighbors.

A metric says little alone: MRR 0.3 is good among a million candidates, and bad where a handful of entities
answers every query. The baselines rank the same edges among the same candidates, with the same ties.

random        The expected metrics, if each of the n candidates that the filter leaves has rank 1..n alike:
              MRR (1 + 1/2 + ... + 1/n) / n, hits@k min(k, n) / n, mean rank (n + 1) / 2.
most_popular  The score of a candidate is its number of trained edges with the relation, on that side.
neighbors     The score of a candidate is the sum over the entities that hold it, by the relation and on the
              side of the query, of the cube of their cosine with the query's entity; equal scores go by the
              number of edges. Two entities are near if they have the same edges: the cosine of their sets of
              (relation, side, other end), each set weighted by log(1 + entities / entities with such an
              edge). For users and items this is the filter by neighbors of recommender systems
              (doi:10.1145/312624.312682). Vectors that have learned something do better. Ranks some of the
              edges; the MRR of the vectors for the same ones is beside it.

Shapes: E edges, K known candidates of queries, W pairs of a relation and an entity that are looked up,
U distinct such pairs, H distinct pairs of a relation and a degree. All numbers are int64. Of neighbors:
E trained edges, H ends of them (2 E), N entities of all types, F distinct features, R ranked edges.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.ask.edges import READ_EDGES, Graph, Numbers, Piece, Triples
from graphmill.ask.evaluate.metrics import HITS, NORMAL, PESSIMISTIC, Floats, Ranks, concatenated
from graphmill.ask.evaluate.queries import Queries
from graphmill.config.partitions import all_buckets
from graphmill.sorted_arrays import contains, distinct, positions, ranges
from graphmill.vocab import Side

MAX_TABLE = 1 << 25  # pairs of a relation and an entity that a table counts
_MAX_DEGREE = 1 << 36  # a relation or a query times this, plus a degree, is one number
_FEW = 100  # up to here sums are exact, from here the series is
_EULER = 0.57721566490153286

MAX_EDGES = 1 << 22  # that neighbors take; the memory is about 100 bytes for each
MOST_RANKED = 2000
_LEAST_RANKED = 100
_WORK = 150_000_000  # numbers that are read for all ranked edges
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Baselines:
    """One side of edges, ranked without a model.

    Attributes:
        num_candidates: those that the filter leaves, the edge's own included, [E].
        popular: ranks by popularity, [E].
        near: ranks by neighbors, of some of the edges; None where the graph is too large.
    """

    num_candidates: Numbers
    popular: Ranks
    near: Ranks | None = None


def metrics(
    parts: Sequence[Mapping[Side, Baselines]], ranks: Mapping[Side, Ranks], sample: Numbers
) -> dict[str, dict[str, float]]:
    """Metrics of the baselines, as `Ranks.metrics`: means over both sides of all edges.

    Those of the neighbors are of the edges `sample`, with `mrr_vectors`, of `ranks` of the same edges, and
    `margin`, half of the 95 % interval of the difference of the two on all edges.
    """
    by_side = [of_side for part in parts for of_side in part.values()]
    figures = {
        "most_popular": concatenated([of_side.popular for of_side in by_side]).metrics(),
        "random": random_metrics(np.concatenate([of_side.num_candidates for of_side in by_side])),
    }
    near_of = {side: [some for part in parts if (some := part[side].near)] for side in ranks}
    if near := [concatenated(of_parts) for of_parts in near_of.values() if of_parts]:
        own_R = np.mean([1 / rank.middle[sample] for rank in ranks.values()], 0)
        ahead_R = own_R - np.mean([1 / rank.middle for rank in near], 0)
        share = len(sample) / len(ranks[Side.LHS].greater)
        margin = NORMAL * float(np.sqrt((1 - share) / len(sample)) * ahead_R.std())
        of_vectors = {"mrr_vectors": float(own_R.mean()), "margin": margin, "num_edges": len(sample)}
        figures["neighbors"] = concatenated(near).metrics() | of_vectors
    return {
        name: {key: value for key, value in simple.items() if not key.endswith(PESSIMISTIC)}
        for name, simple in figures.items()
    }


def reciprocal_ranks(parts: Sequence[Mapping[Side, Baselines]]) -> dict[str, dict[Side, Floats]]:
    """Reciprocal ranks of each edge in both baselines, in the order of the edges; empty without parts."""
    by_name: dict[str, dict[Side, Floats]] = {}
    for side in Side if parts else ():
        of_side = [part[side] for part in parts]
        num_E = np.concatenate([baseline.num_candidates for baseline in of_side])
        popular = concatenated([baseline.popular for baseline in of_side])
        by_name.setdefault("most_popular", {})[side] = 1 / popular.middle
        by_name.setdefault("random", {})[side] = harmonic(num_E) / num_E
    return by_name


def random_metrics(num_candidates: Numbers) -> dict[str, float]:
    """Expected metrics of a random order of so many candidates: [E] -> means."""
    count = num_candidates.astype(np.float64)
    figures = {"mrr": float((harmonic(num_candidates) / count).mean())}
    figures["mean_rank"] = float(((count + 1) / 2).mean())
    return figures | {f"hits@{k}": float((np.minimum(k, count) / count).mean()) for k in HITS}


def harmonic(count: Numbers) -> Floats:
    """Sums 1 + 1/2 + ... + 1/n, to 14 digits: [E]."""
    exact = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _FEW + 1))])
    large = np.maximum(count, _FEW).astype(np.float64)
    series = np.log(large) + _EULER + 1 / (2 * large) - 1 / (12 * large**2) + 1 / (120 * large**4)
    return np.where(count <= _FEW, exact[np.minimum(count, _FEW)], series)


class _Degrees:
    """Numbers of entities of a group (a relation, or a query) by their degree.

    `groups` and `degrees` [H] are pairs that may repeat; `weights` [H] are numbers of entities.
    """

    def __init__(self, groups: Numbers, degrees: Numbers, weights: Numbers) -> None:
        keys = groups * _MAX_DEGREE + degrees
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._before = np.concatenate([[0], np.cumsum(weights[order])])

    def above(self, groups: Numbers, degrees: Numbers) -> Numbers:
        """Entities of each group with a higher degree: [E]."""
        ends = self._first((groups + 1) * _MAX_DEGREE)
        return ends - self._first(groups * _MAX_DEGREE + degrees + 1)

    def _first(self, keys: Numbers) -> Numbers:
        """Entities with smaller keys: [E]."""
        return self._before[np.searchsorted(self._keys, keys)]


def rank(queries: Queries, edges: Triples, known: Numbers, trained_paths: Sequence[str]) -> Baselines:
    """Rank one side of every edge without a model, in the order of the edges.

    `known` has pairs that do not count: distinct numbers query x end + candidate, sorted. Reads the trained
    edges once. Memory: about 50 bytes per pair of a relation and an entity that has edges, in one row of
    buckets; or 24 bytes per pair of them all, up to MAX_TABLE.
    """
    graph, side = queries.graph, queries.side
    query_E = np.empty(len(edges), np.int64)
    query_E[queries.order] = queries.of_edge
    own_is_known_E = contains(known, query_E * graph.end + edges.ends(side))
    query_K, number_K = np.divmod(known, graph.end)
    pair_E, pair_K = edges.rel * graph.end + edges.ends(side), queries.rel[query_K] * graph.end + number_K
    wanted_W = distinct(np.concatenate([pair_E, pair_K]), overwrite=True)
    degree_W, entities = _degrees(graph, side, trained_paths, wanted_W)
    degree_E = degree_W[np.searchsorted(wanted_W, pair_E)]
    left_out = _Degrees(query_K, degree_W[np.searchsorted(wanted_W, pair_K)], np.ones_like(query_K))

    sizes = np.array([sum(graph.counts[name]) for name in graph.types(side)])
    all_E = sizes[graph.static(edges.rel)]
    higher_E = entities.above(edges.rel, degree_E) - left_out.above(query_E, degree_E)
    at_least_E = np.where(degree_E > 0, entities.above(edges.rel, degree_E - 1), all_E)
    at_least_E -= left_out.above(query_E, degree_E - 1) - own_is_known_E  # an edge's own candidate stays
    num_E = all_E - left_out.above(query_E, np.full_like(query_E, -1)) + own_is_known_E
    return Baselines(num_E, Ranks(higher_E, at_least_E - higher_E - 1))


def _degrees(graph: Graph, side: Side, paths: Sequence[str], wanted_W: Numbers) -> tuple[Numbers, _Degrees]:
    """Count trained edges of pairs `relation x end + entity` [W], and of all entities with such an edge.

    A row of buckets holds all edges of a partition's entities. Types without partitions have edges in every
    row, so their counts add up from row to row.
    """
    is_split = np.array([len(graph.counts[name]) > 1 for name in graph.types(side)])
    degree_W = np.zeros_like(wanted_W)
    none = np.empty(0, np.int64)
    seen, going_on = [(none, none)], (none, none)
    num_rows = graph.config.num_side_partitions(side)
    for row in range(num_rows):
        buckets = [bucket for bucket in all_buckets(graph.config) if getattr(bucket, side.value) == row]
        pieces = (Piece(path, bucket) for path in paths for bucket in buckets)
        read = (edges for piece in pieces for edges in graph.read(piece))
        keys = (edges.rel * graph.end + edges.ends(side) for edges in read)
        of_row = counted(keys, graph.num_relations * graph.end)
        pair_U, count_U = _added(*going_on, *of_row)
        ends_U = is_split[graph.static(pair_U // graph.end)] | (row == num_rows - 1)
        going_on = pair_U[~ends_U], count_U[~ends_U]
        pair_U, count_U = pair_U[ends_U], count_U[ends_U]
        place_U = positions(wanted_W, pair_U)
        degree_W[place_U[place_U >= 0]] = count_U[place_U >= 0]
        seen.append(np.unique(pair_U // graph.end * _MAX_DEGREE + count_U, return_counts=True))
    keys_H, weights_H = (np.concatenate(numbers) for numbers in zip(*seen, strict=True))
    return degree_W, _Degrees(*np.divmod(keys_H, _MAX_DEGREE), weights_H)


def counted(parts: Iterable[Numbers], num_keys: int) -> tuple[Numbers, Numbers]:
    """Distinct keys of 0..num_keys, sorted, and how often they occur: [U].

    Where they are too many for a table, parts wait until they are as many as the distinct keys before them.
    """
    if num_keys <= MAX_TABLE:
        count_N = np.zeros(num_keys, np.int64)
        for part in parts:
            np.add.at(count_N, part, 1)
        key_U = np.flatnonzero(count_N)
        return key_U, count_N[key_U]
    none = np.empty(0, np.int64)
    keys, counts, waiting = none, none, [none]
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) > max(len(keys), READ_EDGES):
            keys, counts = _added(keys, counts, *np.unique(np.concatenate(waiting), return_counts=True))
            waiting = [none]
    return _added(keys, counts, *np.unique(np.concatenate(waiting), return_counts=True))


def _added(keys: Numbers, counts: Numbers, more: Numbers, more_counts: Numbers) -> tuple[Numbers, Numbers]:
    """Add counts of distinct keys: both sorted, [U]."""
    key_U = distinct(np.concatenate([keys, more]), overwrite=True)
    sums = np.zeros(len(key_U), np.int64)
    sums[np.searchsorted(key_U, keys)] = counts
    sums[np.searchsorted(key_U, more)] += more_counts
    return key_U, sums


def num_ranked(num_trained: int, num_entities: int, num_edges: int) -> int:
    """Count the edges that are ranked; 0 where the graph is too large."""
    if not 0 < num_trained <= MAX_EDGES:
        return 0
    affordable = _WORK // (num_trained + num_entities)
    return min(num_edges, MOST_RANKED, max(_LEAST_RANKED, affordable))


class _Lists:
    """Lists of numbers by key: those of key k are `values[begins[k]:begins[k + 1]]`."""

    def __init__(self, keys: Numbers, values: Numbers, num_keys: int) -> None:
        order = np.argsort(keys, kind="stable")
        self.values = values[order]
        self.begins = np.searchsorted(keys[order], np.arange(num_keys + 1))

    def of(self, key: int) -> Numbers:
        """List the numbers of one key."""
        return self.values[self.begins[key] : self.begins[key + 1]]

    def joined(self, keys: Numbers) -> tuple[Numbers, Numbers]:
        """Join the numbers of some keys, and repeat the place of their key beside each."""
        count = self.begins[keys + 1] - self.begins[keys]
        return self.values[ranges(self.begins[keys], count)], np.repeat(np.arange(len(keys)), count)


class Neighbors:
    """The trained edges of a graph, by their ends and by what they have in common."""

    def __init__(self, graph: Graph, trained: Triples) -> None:
        self._graph = graph
        sizes = np.array([int(first[-1]) for first in graph.first.values()])
        self._offset = dict(zip(graph.first, (np.cumsum(sizes) - sizes).tolist(), strict=True))
        self._num = num = int(sizes.sum())
        _, pair_E = np.unique(trained.rel * graph.end + trained.lhs, return_inverse=True)
        _, first = np.unique(pair_E * graph.end + trained.rhs, return_index=True)
        trained = trained[np.sort(first)]  # an edge that comes several times counts once
        self._edges = {side: self._entities(side, trained.rel, trained.ends(side)) for side in Side}
        self._rel = trained.rel
        entity_H = np.concatenate([self._edges[side] for side in Side])
        features = [(2 * trained.rel + (side is Side.LHS)) * num + self._edges[side.other] for side in Side]
        _, feature_H = np.unique(np.concatenate(features), return_inverse=True)
        self._features = _Lists(entity_H, feature_H, num)
        self._holders = _Lists(feature_H, entity_H, int(feature_H.max()) + 1)
        self._square_F = np.log1p(num / np.diff(self._holders.begins)) ** 2
        lengths = np.sqrt(np.bincount(entity_H, weights=self._square_F[feature_H], minlength=num))
        self._length_N = np.where(lengths > 0, lengths, 1.0)

    def rank(self, queries: Queries, edges: Triples, known: Numbers) -> Ranks:
        """Rank one side of edges.

        `known` has pairs that do not count, but an edge's own one: query x end + candidate, sorted.
        """
        side, end = queries.side, queries.graph.end
        by_relation = _Lists(self._rel, np.arange(len(self._rel)), self._graph.num_relations)
        asked_R = self._entities(side.other, edges.rel, edges.ends(side.other))
        type_R = np.array(self._graph.types(side))[self._graph.static(edges.rel)].tolist()
        query_R = queries.find(edges.rel, edges.ends(side.other))
        begin_R, end_R = (np.searchsorted(known, number_R * end) for number_R in (query_R, query_R + 1))
        counts = np.empty((2, len(edges)), np.int64)
        for place, (rel, own) in enumerate(zip(edges.rel.tolist(), edges.ends(side).tolist(), strict=True)):
            rows, size = by_relation.of(rel), int(self._graph.first[type_R[place]][-1])
            near_E = self._nearness(int(asked_R[place]))[self._edges[side.other][rows]]
            candidate_E = self._edges[side][rows] - self._offset[type_R[place]]
            score_N = np.bincount(candidate_E, weights=near_E + _TIE, minlength=size)
            score, is_counted_N = score_N[own], np.ones(size, bool)
            is_counted_N[known[begin_R[place] : end_R[place]] - query_R[place] * end] = False
            is_counted_N[own] = False
            others = score_N[is_counted_N]
            counts[:, place] = (others > score).sum(), (others == score).sum()
        return Ranks(*counts)

    def _nearness(self, entity: int) -> Floats:
        """Compute the cube of the cosine of an entity with all others, and 0 with itself: [N]."""
        feature = self._features.of(entity)
        holder, place = self._holders.joined(feature)
        products = np.bincount(holder, weights=self._square_F[feature][place], minlength=self._num)
        products[entity] = 0.0
        cosines: Floats = products / (self._length_N * self._length_N[entity])
        return cosines * cosines * cosines  # on FB15k-237 an MRR of .319, .336, .341 by the power 1, 2, 3

    def _entities(self, side: Side, rel: Numbers, numbers: Numbers) -> Numbers:
        """Number entities through all types."""
        offsets = np.array([self._offset[name] for name in self._graph.types(side)])
        return offsets[self._graph.static(rel)] + numbers
