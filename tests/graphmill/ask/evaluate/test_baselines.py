"""Rankings without a model: against counting one candidate at a time."""

import itertools
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from graphmill.ask.edges import Graph, Numbers, Triples
from graphmill.ask.evaluate import baselines
from graphmill.ask.evaluate.baselines import Baselines, Neighbors, num_ranked
from graphmill.ask.evaluate.metrics import Ranks
from graphmill.ask.evaluate.queries import BlockSize, Queries
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import World, write_edges, write_world

COUNTS = {"user": [9, 4, 7], "item": [13]}
STATIC: dict[str, Any] = {
    "relations": [
        {"name": "knows", "lhs": "user", "rhs": "user"},
        {"name": "bought", "lhs": "user", "rhs": "item"},  # from where the one before ends
        {"name": "sold_by", "lhs": "item", "rhs": "user"},
    ],
}
DYNAMIC = {"dynamic": True}

Edge = tuple[int, int, int]  # lhs, relation, rhs: numbers of entities through all partitions of a type


def drawn(world: World, rng: Generator, count: int) -> list[Edge]:
    """Edges of which few entities have many."""
    edges = []
    for relation in rng.integers(3, size=count).tolist():
        lhs, rhs = (int(sum(COUNTS[name]) * rng.random() ** 3) for name in world.types(relation).values())
        edges.append((lhs, relation, rhs))
    return edges


def triples(edges: list[Edge]) -> Triples:
    columns: list[Numbers] = [np.array([edge[place] for edge in edges], np.int64) for place in range(3)]
    return Triples(*columns)


def by_hand(world: World, ranked: list[Edge], known: set[Edge], trained: list[Edge]) -> dict[str, Any]:
    """Reciprocal ranks, ranks and hits@10 of both baselines, by side and edge."""
    found: dict[str, list[Any]] = {"left": [], "middle": [], "random_mrr": []}
    for side, edge in itertools.product(Side, ranked):
        lhs, relation, rhs = edge
        size = sum(COUNTS[world.types(relation)[side]])
        every = [(each, relation, rhs) if side is Side.LHS else (lhs, relation, each) for each in range(size)]
        left = [each for each in every if each == edge or each not in known]
        end = 0 if side is Side.LHS else 2
        degree = {each: sum(t[1] == relation and t[end] == each[end] for t in trained) for each in left}
        higher = sum(degree[each] > degree[edge] for each in left)
        equal = sum(degree[each] == degree[edge] for each in left) - 1
        found["left"].append(len(left))
        found["middle"].append(1 + higher + equal / 2)
        found["random_mrr"].append(sum(1 / rank for rank in range(1, len(left) + 1)) / len(left))
    return found


def asked(graph: Graph, side: Side, ranked: Triples, known: Triples) -> tuple[Queries, Triples, Numbers]:
    """The queries of edges, the edges, and the pairs of queries and known answers."""
    queries = Queries(graph, side, ranked, BlockSize(1, 64))
    query_K = queries.find(known.rel, known.ends(side.other))
    return queries, ranked, np.unique((query_K * graph.end + known.ends(side))[query_K >= 0])


@pytest.mark.parametrize(
    ("relations", "filtered"),
    [(STATIC, True), (STATIC, False), (DYNAMIC, True)],
    ids=["static", "all", "dynamic"],
)
def test_baselines_are_those_of_counting(tmp_path, rng, relations, filtered):
    world = write_world(tmp_path / "run", counts=COUNTS, splits=(), **relations)
    graph = Graph(world.config, COUNTS, 3)
    train, test = drawn(world, rng, 150), drawn(world, rng, 40)
    test += test[:3] + train[:3]
    for name, edges in (("one", train[:60]), ("two", train[60:])):
        write_edges(world.config, COUNTS, edges, str(tmp_path / name))
    known = triples([*train, *test] if filtered else [])
    paths = [str(tmp_path / name) for name in ("one", "two")]
    ranked = triples(test)
    found = {side: baselines.rank(*asked(graph, side, ranked, known), paths) for side in Side}
    expected = by_hand(world, test, {*train, *test} if filtered else set(), train)
    left = np.concatenate([found[side].num_candidates for side in Side])
    assert left.tolist() == expected["left"]
    middle = np.concatenate([found[side].popular.middle for side in Side])
    assert middle.tolist() == expected["middle"]
    figures = baselines.metrics([found], {}, np.arange(len(ranked)))
    assert figures["random"]["mrr"] == pytest.approx(np.mean(expected["random_mrr"]), rel=1e-12)
    assert figures["random"]["mean_rank"] == pytest.approx((left.mean() + 1) / 2)
    assert figures["random"]["hits@10"] == pytest.approx(np.minimum(1, 10 / left).mean())
    assert figures["most_popular"]["mrr"] == pytest.approx(np.mean(1 / middle))
    assert figures["most_popular"].keys() == figures["random"].keys()
    # few entities have many edges, so popularity tells something
    assert figures["most_popular"]["mrr"] > 1.3 * figures["random"]["mrr"]


def scores_by_hand(world: World, side: Side, edge: Edge, train: list[Edge]) -> list[float]:
    """Score all candidates of one side of an edge by what the neighbors of its other end have."""
    ends: dict[tuple[str, int], set[tuple[int, Side, int]]] = defaultdict(set)
    for lhs, relation, rhs in train:
        ends[world.types(relation)[Side.LHS], lhs].add((relation, Side.LHS, rhs))
        ends[world.types(relation)[Side.RHS], rhs].add((relation, Side.RHS, lhs))
    held = Counter(feature for features in ends.values() for feature in features)
    weight = {each: math.log(1 + sum(map(sum, COUNTS.values())) / count) ** 2 for each, count in held.items()}

    def product(*of: set[tuple[int, Side, int]]) -> float:
        return sum(weight[each] for each in set.intersection(*of))

    relation, place = edge[1], 0 if side is Side.LHS else 2
    kind, asked = world.types(relation)[side.other], edge[2 - place]
    own, scores = ends[kind, asked], [0.0] * sum(COUNTS[world.types(relation)[side]])
    for other in train:
        if other[1] == relation:
            features, holder = ends[kind, other[2 - place]], other[2 - place]
            cosine = product(own, features) / math.sqrt(product(own) * product(features)) if own else 0.0
            scores[other[place]] += 1e-9 + (0.0 if holder == asked else cosine**3)
    return scores


@pytest.mark.parametrize("relations", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_neighbors_are_those_of_counting(tmp_path: Path, rng: Generator, relations: dict[str, Any]) -> None:
    """An edge that comes several times counts once: neighbors are those of sets."""
    world = write_world(tmp_path / "run", counts=COUNTS, splits=(), **relations)
    graph = Graph(world.config, COUNTS, 3)
    drawn_edges, test = drawn(world, rng, 150), drawn(world, rng, 40)
    train = sorted(set(drawn_edges))
    assert len(train) < len(drawn_edges)
    trained, left_out = triples(drawn_edges), {*train, *test}
    for side in Side:
        of_side = asked(graph, side, triples(test), triples([*train, *test]))
        middle = Neighbors(graph, trained).rank(*of_side).middle
        place = 0 if side is Side.LHS else 2
        for edge, rank in zip(test, middle.tolist(), strict=True):
            scores, own = scores_by_hand(world, side, edge, train), edge[place]
            others = [(*edge[:place], each, *edge[place + 1 :]) for each in range(len(scores))]
            left = [each for each, other in enumerate(others) if other not in left_out]
            higher = sum(scores[each] > scores[own] + 1e-12 for each in left)
            equal = sum(abs(scores[each] - scores[own]) <= 1e-12 for each in left)
            assert rank == 1 + higher + equal / 2


def test_the_margin_is_that_of_the_difference_on_the_edges_of_the_sample(rng: Generator) -> None:
    """Both rank the same edges, in parts: what is hard for both is no difference."""
    own, near = ({side: rng.integers(9, size=40) for side in Side} for _ in range(2))
    none, sample = np.zeros(10, np.int64), np.arange(0, 20, 2)  # of the second half, none is ranked
    part, other = (
        {side: Baselines(none + 1, Ranks(none, none), rank(side)) for side in Side}
        for rank in (lambda side: Ranks(near[side][sample], none), lambda side: None)
    )
    ranks = {side: Ranks(own[side], np.zeros(40, np.int64)) for side in Side}
    found = baselines.metrics([part, other], ranks, sample)["neighbors"]
    ahead = np.mean([1 / (1 + own[side][sample]) - 1 / (1 + near[side][sample]) for side in Side], 0)
    assert found["mrr_vectors"] - found["mrr"] == pytest.approx(ahead.mean())
    assert found["margin"] == pytest.approx(1.96 * ahead.std() / 10**0.5 * (30 / 40) ** 0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("num_trained", "num_entities", "num_edges", "expected"),
    [
        (0, 5, 100, 0),
        (60_000, 15_000, 20_000, 2000),
        (1 << 22, 1_000_000, 20_000, 100),
        ((1 << 22) + 1, 10, 20_000, 0),
    ],
)
def test_a_large_graph_has_fewer_edges_that_neighbors_rank(num_trained, num_entities, num_edges, expected):
    assert num_ranked(num_trained, num_entities, num_edges) == expected


def test_counts_of_any_parts_are_the_same(rng: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, none = rng.integers(1000, size=5000), np.empty(0, np.int64)
    expected = np.unique(keys, return_counts=True)
    sizes, splits = ((1, 0), (1 << 20, 0), (1 << 20, 1000)), ([keys], np.array_split(keys, 70), [none, keys])
    for (most, table), parts in itertools.product(sizes, splits):
        monkeypatch.setattr(baselines, "READ_EDGES", most)
        monkeypatch.setattr(baselines, "MAX_TABLE", table)
        np.testing.assert_array_equal(baselines.counted(parts, 1000), expected)
        np.testing.assert_array_equal(baselines.counted([], 1000), (none, none))


def test_harmonic_sums_are_exact() -> None:
    counts = np.array([1, 2, 99, 100, 101, 5000, 1_000_000])
    expected = [float(np.sum(1 / np.arange(1, each + 1, dtype=np.longdouble))) for each in counts]
    np.testing.assert_allclose(baselines.harmonic(counts), expected, rtol=1e-14)
