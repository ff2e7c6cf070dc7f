"""Estimates from drawn edges: simulations meet the truth."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.ask.evaluate import evaluate
from graphmill.ask.evaluate.extent import ALWAYS, drawn_rows, extent_of, told
from graphmill.ask.evaluate.metrics import Ranks
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.vocab import Side
from tests.graphmill.ask.evaluate.test_distributed import graph

NUM = 1000  # candidates


def higher(rng: np.random.Generator, num_edges: int) -> np.ndarray:
    """Numbers of better candidates: most are small, some are large."""
    return np.minimum((rng.pareto(0.5, num_edges) * 2).astype(np.int64), NUM)


def ranks_of(num_higher: np.ndarray) -> Ranks:
    return Ranks(num_higher, np.zeros_like(num_higher))


def test_intervals_cover_the_truth(rng: np.random.Generator) -> None:
    """95 of 100."""
    num_runs, num_edges, share = 80, 600, 0.25
    covered: dict[str, int] = {}
    for _ in range(num_runs):
        all_edges = {side: higher(rng, num_edges) for side in Side}
        truths = [ranks_of(each).metrics() for each in all_edges.values()]
        chosen = rng.choice(num_edges, int(share * num_edges), replace=False)
        ranks = {side: ranks_of(each[chosen]) for side, each in all_edges.items()}
        for name, (low, high) in evaluate.intervals(ranks, share).items():
            truth = np.mean([each[name] for each in truths])
            covered[name] = covered.get(name, 0) + bool(low <= truth <= high)
    assert covered.keys() == {"mrr", "mean_rank", "hits@1", "hits@3", "hits@10", "hits@50"}
    assert min(covered.values()) >= 0.9 * num_runs


def test_the_middle_of_an_interval_is_the_metric(rng: np.random.Generator) -> None:
    num_higher = higher(rng, 500)
    ranks = {side: ranks_of(num_higher) for side in Side}
    for name, (low, high) in evaluate.intervals(ranks, 0.1).items():
        assert (low + high) / 2 == pytest.approx(ranks[Side.LHS].metrics()[name], rel=1e-9)
    assert evaluate.intervals({side: ranks_of(num_higher[:1]) for side in Side}, 0.1) == {}


def test_rows_are_drawn_from_all_files_alike() -> None:
    counts, times = [5, 0, 3, 12], np.zeros(20)
    for seed in range(3000):
        rows = drawn_rows(seed, counts, 6)
        assert sum(map(len, rows)) == 6
        for first, each in zip((0, 5, 5, 8), rows, strict=True):
            assert (np.diff(each) > 0).all()
            times[first + each] += 1
    assert np.abs(times / 3000 - 0.3).max() < 0.04
    assert [len(each) for each in drawn_rows(0, counts, 99)] == counts


def test_the_budget_counts_work(tmp_path: Path) -> None:
    config = graph(tmp_path, 1)
    sizes = {"user": 10**6, "item": 2 * 10**6}
    always = ALWAYS // config.dimension // (4 * 10**6)  # both sides of `like`
    small = extent_of(config, 10**7, sizes, 10**6)
    assert (small.num_edges, small.is_sampled) == (always, True)
    assert "some minutes" in told(small, "test")
    assert told(small, "test").endswith("evaluate.budget: unlimited ranks all")
    large = extent_of(config, 10**9, sizes, 10**12)
    work = 10**12 * config.num_epochs * 6 * (1 + config.num_batch_negs + config.num_uniform_negs)
    assert large.num_edges == pytest.approx(0.1 * work / (4 * 10**6), rel=1e-9)
    assert not extent_of(config, always, sizes, 0).is_sampled
    for changes, expected in (
        ({"budget": "unlimited"}, 10**9),
        ({"sample": 77}, 77),
        ({"budget": "unlimited", "candidates": 10}, 10**9),  # of older configurations, without effect
        ({"budget": 0.2}, 2 * large.num_edges),
    ):
        changed = config.with_section(EvaluateConfig(**changes))
        assert extent_of(changed, 10**9, sizes, 10**12).num_edges == pytest.approx(expected, abs=1)
