"""Estimates from drawn candidates and drawn edges: simulations meet the truth, and all of them are exact."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.vocab import Side
from tests.train.evaluation.test_distributed import graph
from train.config import EvaluateConfig
from train.evaluation import estimates, evaluate
from train.evaluation.drawing import Drawing, drawn_rows
from train.evaluation.extent import ALWAYS, extent_of, told
from train.evaluation.metrics import Ranks

NUM = 1000  # candidates


def higher(rng: np.random.Generator, num_edges: int) -> np.ndarray:
    """Numbers of better candidates: most are small, some are large."""
    return np.minimum((rng.pareto(0.5, num_edges) * 2).astype(np.int64), NUM)


def ranks_of(num_higher: np.ndarray, drawn: int | None, rng: np.random.Generator) -> Ranks:
    none = np.zeros_like(num_higher)
    if drawn is None:
        return Ranks(num_higher, none)
    found = rng.hypergeometric(num_higher, NUM - num_higher, drawn)
    return Ranks(found, none, none + drawn, none + NUM, np.arange(len(none)))


@pytest.mark.parametrize("drawn", [None, 30, 500])
def test_intervals_cover_the_truth(rng: np.random.Generator, drawn: int | None) -> None:
    """95 of 100 with all candidates; with drawn ones more, because bounds are no estimates."""
    num_runs, num_edges, share = 80, 600, 0.25
    covered: dict[str, int] = {}
    for _ in range(num_runs):
        all_edges = {side: higher(rng, num_edges) for side in Side}
        truths = [Ranks(each, np.zeros_like(each)).metrics() for each in all_edges.values()]
        chosen = rng.choice(num_edges, int(share * num_edges), replace=False)
        ranks = {side: ranks_of(each[chosen], drawn, rng) for side, each in all_edges.items()}
        for name, (low, high) in estimates.intervals(ranks, share).items():
            truth = np.mean([each[name] for each in truths])
            covered[name] = covered.get(name, 0) + bool(low <= truth <= high)
    assert covered.keys() == {"mrr", "mean_rank", "hits@1", "hits@3", "hits@10", "hits@50"}
    assert min(covered.values()) >= 0.9 * num_runs


def test_estimates_of_the_mean_rank_are_unbiased(rng: np.random.Generator) -> None:
    num_higher = higher(rng, 20_000)
    found = ranks_of(num_higher, 50, rng).metrics()
    assert found["mean_rank"] == pytest.approx(1 + num_higher.mean(), rel=0.02)


def test_all_candidates_leave_no_doubt(rng: np.random.Generator) -> None:
    num_higher = higher(rng, 500)
    for drawn in (None, NUM):
        ranks = {side: ranks_of(num_higher, drawn, rng) for side in Side}
        truth = Ranks(num_higher, np.zeros_like(num_higher)).metrics()
        assert ranks[Side.LHS].metrics() == pytest.approx(truth)
        for name, (low, high) in estimates.intervals(ranks, 0.1).items():
            assert (low + high) / 2 == pytest.approx(truth[name], rel=1e-9)
    assert estimates.intervals({side: ranks_of(num_higher[:1], None, rng) for side in Side}, 0.1) == {}


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
    drawing = Drawing(7, 4, {"user": counts})
    blocks = [
        [drawing.rows(Side.LHS, "user", block, part).tolist() for part in range(4)] for block in (1, 1, 2)
    ]
    assert blocks[0] == blocks[1] != blocks[2]


@pytest.mark.slow
def test_drawn_candidates_estimate_the_ranks(tmp_path: Path) -> None:
    config = graph(tmp_path, 2)
    section = config.section(EvaluateConfig)
    exact = evaluate.evaluate(config)
    every = evaluate.evaluate(config.with_section(section.model_copy(update={"candidates": 400})))
    assert every["metrics"] == exact["metrics"]
    found = []
    for seed in range(4):
        changed = config.model_copy(update={"seed": seed})
        changed = changed.with_section(section.model_copy(update={"candidates": 100}))
        found.append(evaluate.evaluate(changed))
        for name, (low, high) in found[-1]["intervals"].items():
            assert low <= exact["metrics"][name] <= high, name
    mean_rank = np.mean([each["metrics"]["mean_rank"] for each in found])
    assert mean_rank == pytest.approx(exact["metrics"]["mean_rank"], rel=0.05)
    assert len({each["metrics"]["mean_rank"] for each in found}) == 4
    again = changed.with_section(changed.section(EvaluateConfig).model_copy(update={"query_bytes": 1}))
    assert evaluate.evaluate(again)["metrics"] == found[-1]["metrics"]


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
        ({"candidates": 10}, 10**9),
        ({"budget": 0.2}, 2 * large.num_edges),
    ):
        changed = config.with_section(EvaluateConfig(**changes))
        assert extent_of(changed, 10**9, sizes, 10**12).num_edges == pytest.approx(expected, abs=1)
