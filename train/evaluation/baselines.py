"""Metrics of rankings without a model: a random order, and the most popular candidates first.

A metric says little alone: MRR 0.3 is good among a million candidates, and bad where a handful of entities
answers every query. Both baselines rank the same edges among the same candidates, with the same ties.

random        The expected metrics, if each of the n candidates that the filter leaves has rank 1..n alike:
              MRR (1 + 1/2 + ... + 1/n) / n, hits@k min(k, n) / n, mean rank (n + 1) / 2.
most_popular  The score of a candidate is its number of trained edges with the relation, on that side.

Shapes: E edges, K known candidates of queries, W pairs of a relation and an entity that are looked up,
U distinct such pairs, H distinct pairs of a relation and a degree. All numbers are int64.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from graphmill.vocab import Side
from train.edges.partitions import all_buckets
from train.evaluation.metrics import HITS, PESSIMISTIC, Ranks, concatenated
from train.evaluation.queries import READ_EDGES, Numbers, Queries, Slots, Triples

Floats = npt.NDArray[np.float64]

_MAX_DEGREE = 1 << 36  # a relation or a query times this, plus a degree, is one number
_FEW = 100  # up to here sums are exact, from here the series is
_EULER = 0.57721566490153286


@dataclass(frozen=True, eq=False)
class Baselines:
    """Of one side: candidates that the filter leaves, the edge's own included, [E]; ranks by popularity."""

    num_candidates: Numbers
    popular: Ranks


def metrics(parts: Sequence[Mapping[Side, Baselines]]) -> dict[str, dict[str, float]]:
    """Metrics of both baselines, as `Ranks.metrics`: means over both sides of all edges."""
    by_side = [each for part in parts for each in part.values()]
    popular = concatenated([each.popular for each in by_side]).metrics()
    return {
        "most_popular": {name: popular[name] for name in popular if not name.endswith(PESSIMISTIC)},
        "random": random_metrics(np.concatenate([each.num_candidates for each in by_side])),
    }


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
    sums: Floats = np.where(count <= _FEW, exact[np.minimum(count, _FEW)], series)
    return sums


class _Degrees:
    """How many entities of a group (a relation, or a query) have which degree.

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
        above: Numbers = ends - self._first(groups * _MAX_DEGREE + degrees + 1)
        return above

    def _first(self, keys: Numbers) -> Numbers:
        """Entities with smaller keys: [E]."""
        smaller: Numbers = self._before[np.searchsorted(self._keys, keys)]
        return smaller


def rank(queries: Queries, edges: Triples, known: Numbers, trained_paths: Sequence[str]) -> Baselines:
    """Rank one side of every edge without a model, in the order of the edges.

    `known` has pairs that do not count: distinct numbers query x end + candidate, sorted. Reads the trained
    edges once. Memory: about 50 bytes per pair of a relation and an entity in one row of buckets.
    """
    slots, side = queries.slots_of_types, queries.side
    query_E = np.empty(len(edges), np.int64)
    query_E[queries.order] = queries.of_edge
    own_is_known_E = np.isin(query_E * slots.end + edges.slots(side), known)
    query_K, slot_K = np.divmod(known, slots.end)
    pair_E, pair_K = edges.rel * slots.end + edges.slots(side), queries.rel[query_K] * slots.end + slot_K
    wanted_W = np.unique(np.concatenate([pair_E, pair_K]))
    degree_W, entities = _degrees(slots, side, trained_paths, wanted_W)
    degree_E = degree_W[np.searchsorted(wanted_W, pair_E)]
    left_out = _Degrees(query_K, degree_W[np.searchsorted(wanted_W, pair_K)], np.ones_like(query_K))

    sizes = np.array([sum(slots.counts[each]) for each in slots.types(side)])
    all_E = sizes[slots.static(edges.rel)]
    higher_E = entities.above(edges.rel, degree_E) - left_out.above(query_E, degree_E)
    at_least_E = np.where(degree_E > 0, entities.above(edges.rel, degree_E - 1), all_E)
    at_least_E -= left_out.above(query_E, degree_E - 1) - own_is_known_E  # an edge's own candidate stays
    num_E = all_E - left_out.above(query_E, np.full_like(query_E, -1)) + own_is_known_E
    return Baselines(num_E, Ranks(higher_E, at_least_E - higher_E - 1))


def _degrees(slots: Slots, side: Side, paths: Sequence[str], wanted_W: Numbers) -> tuple[Numbers, _Degrees]:
    """Trained edges of wanted pairs `relation x end + entity` [W], and of all entities with such an edge.

    One row of buckets holds all edges of a partition's entities. Types without partitions are in every row:
    their counts go on to the next.
    """
    is_split = np.array([len(slots.counts[each]) > 1 for each in slots.types(side)])
    degree_W = np.zeros_like(wanted_W)
    none = np.empty(0, np.int64)
    found, going_on = [(none, none)], (none, none)
    num_rows = slots.config.num_side_partitions(side)
    for row in range(num_rows):
        pair_U, count_U = counted(_pairs(slots, side, paths, row), *going_on)
        ends_U = is_split[slots.static(pair_U // slots.end)] | (row == num_rows - 1)
        going_on = pair_U[~ends_U], count_U[~ends_U]
        pair_U, count_U = pair_U[ends_U], count_U[ends_U]
        is_wanted_U = np.isin(pair_U, wanted_W)
        degree_W[np.searchsorted(wanted_W, pair_U[is_wanted_U])] = count_U[is_wanted_U]
        found.append(np.unique(pair_U // slots.end * _MAX_DEGREE + count_U, return_counts=True))
    keys_H, weights_H = (np.concatenate(each) for each in zip(*found, strict=True))
    return degree_W, _Degrees(*np.divmod(keys_H, _MAX_DEGREE), weights_H)


def _pairs(slots: Slots, side: Side, paths: Sequence[str], row: int) -> Iterator[Numbers]:
    """Relation x end + entity of the edges in one row of buckets."""
    buckets = [each for each in all_buckets(slots.config) if getattr(each, side.value) == row]
    for path, bucket in product(paths, buckets):
        for part in slots.read_bucket(path, bucket):
            yield part.rel * slots.end + part.slots(side)


def counted(parts: Iterable[Numbers], keys_U: Numbers, count_U: Numbers) -> tuple[Numbers, Numbers]:
    """Distinct keys, sorted, and how often they occur, beyond the given counts: [U]."""
    waiting: list[Numbers] = []
    for part in parts:
        waiting.append(part)
        # merging no less than there is already keeps the cost of all merges near that of one sort
        if sum(map(len, waiting)) > max(len(keys_U), READ_EDGES):
            keys_U, count_U = _merged(keys_U, count_U, waiting)
            waiting = []
    return _merged(keys_U, count_U, waiting)


def _merged(keys_U: Numbers, count_U: Numbers, more: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    new, count_new = np.unique(np.concatenate([np.empty(0, np.int64), *more]), return_counts=True)
    keys, place = np.unique(np.concatenate([keys_U, new]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([count_U, count_new]), minlength=len(keys))
    return keys, counts.astype(np.int64)
