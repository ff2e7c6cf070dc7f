"""Metrics in parts: against counting by hand."""

import numpy as np
import pytest

from graphmill.ask.evaluate import job, metrics
from graphmill.ask.evaluate.metrics import Ranks
from graphmill.ask.evaluate.queries import Triples
from graphmill.vocab import Side


def drawn(rng: np.random.Generator, num_edges: int) -> Triples:
    rel = rng.integers(2, size=num_edges)
    lhs = rng.choice([*range(40), *range(128, 140)], num_edges)
    return Triples(
        lhs, rel, np.where(rel == 0, rng.integers(50, size=num_edges), rng.integers(90, size=num_edges))
    )


def test_parts_have_the_means_of_their_own_edges(rng: np.random.Generator) -> None:
    edges = drawn(rng, 80)
    ranks = {side: Ranks(rng.integers(30, size=80), rng.integers(3, size=80)) for side in Side}
    parts = metrics.break_down(
        ranks, edges, {side: rng.integers(20, size=80) for side in Side}, ["bought", "knows"]
    )
    for entry in parts["metrics_by_relation"]:
        chosen = edges.rel == ["bought", "knows"].index(entry["relation"])
        for side in Side:
            rank = 1 + ranks[side].greater[chosen] + ranks[side].equal[chosen] / 2
            assert entry[side.value]["num_edges"] == chosen.sum()
            assert entry[side.value]["mrr"] == np.mean(1 / rank)
            assert entry[side.value]["hits@10"] == np.mean(rank <= 10)
    bands = parts["metrics_by_degree"]
    for side in Side:
        assert sum(band[side.value]["num_edges"] for band in bands) == 80
        weighted = sum(band[side.value].get("mrr", 0) * band[side.value]["num_edges"] for band in bands)
        assert np.isclose(weighted / 80, parts["metrics_by_side"][side.value]["mrr"])
    assert [band["first"] for band in bands] == sorted(band["first"] for band in bands)


def test_edges_that_nothing_was_trained_on_have_degree_0(rng: np.random.Generator) -> None:
    edges = drawn(rng, 5)
    ranks = {side: Ranks(np.zeros(5, np.int64), np.zeros(5, np.int64)) for side in Side}
    parts = metrics.break_down(
        ranks, edges, {side: np.zeros(5, np.int64) for side in Side}, ["bought", "knows"]
    )
    assert parts["metrics_by_degree"] == [
        {"first": 0, "last": 0} | {side.value: {"num_edges": 5, "mrr": 1.0, "hits@10": 1.0} for side in Side}
    ]


def test_relations_without_edges_are_named_and_told(
    rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    edges = drawn(rng, 80)
    bought = Triples(*(column[edges.rel == 0] for column in (edges.lhs, edges.rel, edges.rhs)))
    num_edges = len(bought)
    ranks = {side: Ranks(rng.integers(30, size=num_edges), rng.integers(3, size=num_edges)) for side in Side}
    parts = metrics.break_down(ranks, bought, dict.fromkeys(Side, bought.rel), ["bought", "knows"])
    assert (parts["num_relations_unranked"], parts["relations_unranked"]) == (1, ["knows"])
    job.warn_of_unranked(parts | {"split": "test"})
    assert "1 relations have no edges in test" in caplog.text
    assert "them: knows;" in caplog.text
