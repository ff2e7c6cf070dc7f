"""Probabilities of answers, metrics in parts, and metrics of drawn edges: simulations meet the truth."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.ask.evaluate import calibrate, job, metrics
from graphmill.ask.evaluate.calibrate import CalibrationAnswers, Fit
from graphmill.ask.evaluate.inputs import ALWAYS, drawn_rows, extent_of, told
from graphmill.ask.evaluate.metrics import Ranks
from graphmill.ask.evaluate.queries import Triples
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.display.readable import number
from graphmill.model.calibration import NUM_BEST, probabilities, shares
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import write_world

GROUPS = {0: (1.0, 0.5), 3: (2.0, 0.0), 4: (0.6, -1.0)}  # slope and bias


def drawn(rng: np.random.Generator, num_queries: int, scale: float = 1.0) -> CalibrationAnswers:
    """Answers that are true as the lines of GROUPS say, at the temperature 1; scores are then scaled."""
    score_QK = -np.sort(-rng.normal(scale=2, size=(num_queries, NUM_BEST)))
    group_Q = rng.choice(list(GROUPS), num_queries)
    line_Q2 = np.array([GROUPS[each] for each in group_Q.tolist()])
    probability_QK = probabilities(shares(score_QK, 1.0), line_Q2[:, :1], line_Q2[:, 1:])
    is_true_QK = rng.random(probability_QK.shape) < probability_QK
    offset_Q1 = rng.normal(scale=50, size=(num_queries, 1))  # of no meaning: each query has its own
    return CalibrationAnswers((score_QK * scale + offset_Q1).astype(np.float32), is_true_QK, group_Q)


def test_shares_are_those_of_a_softmax() -> None:
    share_QK = shares(np.array([[2.0, 1.0, -np.inf], [-np.inf] * 3]), 0.5)
    assert np.exp(share_QK[0]).tolist() == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2)), 0])
    assert (share_QK[1] == -np.inf).all()
    assert shares(np.empty((3, 0)), 1.0).shape == (3, 0)
    score_QK = -np.sort(-np.random.default_rng(0).normal(size=(2, 3 * NUM_BEST)))
    assert (shares(score_QK, 1.0)[:, :NUM_BEST] == shares(score_QK[:, :NUM_BEST], 1.0)).all()  # whatever K


@given(st.integers(0, 2**32), st.floats(0.01, 100), st.floats(0, 50), st.floats(-50, 50))
def test_probabilities_are_between_0_and_1_and_rise_with_the_score(seed, temperature, slope, bias):
    score_QK = -np.sort(-np.random.default_rng(seed).normal(scale=100, size=(4, 20)))
    found_QK = probabilities(shares(score_QK, temperature), slope, bias).astype(np.float32)
    assert ((found_QK > 0) & (found_QK < 1)).all()
    assert (np.diff(found_QK) <= 0).all()


@pytest.mark.parametrize("scale", [0.02, 30.0])
def test_a_fit_finds_temperature_and_lines(rng: np.random.Generator, scale: float) -> None:
    """Whatever the scale of the scores; temperature and slope can make up for each other in part."""
    answers = drawn(rng, 3000, scale)
    found = calibrate.fit(answers)
    assert found.groups.tolist() == sorted(GROUPS)
    assert 0.4 < found.temperature / scale < 2.5
    figures = calibrate.measure(found, drawn(rng, 3000, scale))
    assert figures["top_10"]["ece"] < 0.02
    assert figures["top_100"]["ece"] < 0.003
    assert figures["top_10"]["brier"] < 0.95 * figures["top_10"]["brier_base_rate"]


def test_few_answers_stay_near_the_pooled_line(rng: np.random.Generator) -> None:
    answers = drawn(rng, 2000)
    answers.group[:] = 0
    answers.group[0] = 8
    answers.is_true[0] = False
    answers.is_true[0, 80] = True  # a bad answer of one query is the only true one
    found = calibrate.fit(answers)
    assert found.groups.tolist() == [0, 8]
    slope, bias = found.lines[0]
    assert found.pooled == pytest.approx((slope, bias), abs=0.05)
    assert 0 < found.lines[1, 0] < slope / 2  # one query counts as much as the pooled line
    rest = (each[1:] for each in (answers.score, answers.is_true, answers.group))
    alone = calibrate.fit(CalibrationAnswers(*rest))
    unknown = CalibrationAnswers(answers.score[:1], answers.is_true[:1], np.array([99]))
    pooled = probabilities(shares(unknown.score, alone.temperature), *alone.pooled)
    assert (alone.probabilities(unknown) == pooled).all()


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 12), st.floats(0, 1))
def test_any_answers_have_a_fit(seed: int, num_queries: int, chance: float) -> None:
    """Few queries, none, with few candidates, equal scores, without a true answer or with true ones alone."""
    rng = np.random.default_rng(seed)
    score_QK = -np.sort(-rng.integers(3, size=(num_queries, NUM_BEST)).astype(np.float32))
    score_QK[:, rng.integers(NUM_BEST + 1) :] = -np.inf
    is_true_QK = (rng.random(score_QK.shape) < chance) & np.isfinite(score_QK)
    answers = CalibrationAnswers(score_QK, is_true_QK, rng.integers(4, size=num_queries))
    found = calibrate.fit(answers)
    assert np.isfinite([found.temperature, *found.pooled, *found.lines.reshape(-1)]).all()
    assert (found.lines[:, 0] >= 0).all()
    assert found.temperature > 0
    again = calibrate.fit(answers)
    assert (again.temperature, again.pooled) == (found.temperature, found.pooled)
    assert again.lines.tobytes() == found.lines.tobytes()
    calibrate.measure(found, answers)


def test_measures_by_hand() -> None:
    score_QK = np.log(np.array([[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]], np.float32) + 1e-30)
    score_QK[1, 2] = -np.inf
    is_true_QK = np.array([[True, False, False], [False, True, False]])
    answers = CalibrationAnswers(score_QK, is_true_QK, np.zeros(2, np.int64))
    exact = Fit(1.0, (1.0, 0.0), np.empty(0, np.int64), np.empty((0, 2)))  # type: ignore[arg-type]
    odds = np.array([0.6, 0.3, 0.1, 0.5, 0.5])
    expected = odds / (1 + odds)  # a line of slope 1 makes odds of shares
    true = np.array([1, 0, 0, 0, 1])
    found = calibrate.measure(exact, answers)["top_10"]
    assert (found["num_answers"], found["true"]) == (5, 0.4)
    assert found["ece"] == pytest.approx(np.abs(expected - true).mean())  # a bin for each answer
    assert found["brier"] == pytest.approx(((expected - true) ** 2).mean())
    assert found["brier_base_rate"] == pytest.approx(0.24)
    assert calibrate.measure(exact, answers)["top_1"]["num_answers"] == len(Side)


def drawn_ranks(rng: np.random.Generator, num_edges: int) -> Triples:
    rel = rng.integers(2, size=num_edges)
    lhs = rng.choice([*range(40), *range(128, 140)], num_edges)
    return Triples(lhs, rel, rng.integers(np.where(rel == 0, 50, 90)))


def test_parts_have_the_means_of_their_own_edges(rng: np.random.Generator) -> None:
    edges = drawn_ranks(rng, 80)
    ranks = {side: Ranks(rng.integers(30, size=80), rng.integers(3, size=80)) for side in Side}
    degrees = {side: rng.integers(20, size=80) for side in Side}
    parts = metrics.break_down(ranks, edges, degrees, ["bought", "knows"])
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


def test_relations_without_edges_are_named_and_told_and_untrained_ends_have_degree_0(rng, caplog):
    edges = drawn_ranks(rng, 80)
    bought = Triples(*(column[edges.rel == 0] for column in (edges.lhs, edges.rel, edges.rhs)))
    ranks = dict.fromkeys(Side, ranks_of(none := np.zeros(len(bought), np.int64)))
    parts = metrics.break_down(ranks, bought, dict.fromkeys(Side, none), ["bought", "knows"])
    assert (parts["num_relations_unranked"], parts["relations_unranked"]) == (1, ["knows"])
    of_side = {"num_edges": len(bought), "mrr": 1.0, "hits@10": 1.0}
    assert parts["metrics_by_degree"] == [{"first": 0, "last": 0} | {each.value: of_side for each in Side}]
    job.warn_of_unranked(parts | {"split": "test"})
    assert "relations without edges in test (1): " in caplog.text
    assert "in test (1): knows;" in caplog.text


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
        for name, (low, high) in metrics.intervals(ranks, share).items():
            truth = np.mean([each[name] for each in truths])
            covered[name] = covered.get(name, 0) + bool(low <= truth <= high)
    assert covered.keys() == {"mrr", "mean_rank", "hits@1", "hits@3", "hits@10", "hits@50"}
    assert min(covered.values()) >= 0.9 * num_runs


def test_the_middle_of_an_interval_is_the_metric(rng: np.random.Generator) -> None:
    num_higher = higher(rng, 500)
    ranks = {side: ranks_of(num_higher) for side in Side}
    for name, (low, high) in metrics.intervals(ranks, 0.1).items():
        assert (low + high) / 2 == pytest.approx(ranks[Side.LHS].metrics()[name], rel=1e-9)
    assert metrics.intervals({side: ranks_of(num_higher[:1]) for side in Side}, 0.1) == {}


def test_rows_are_drawn_from_all_files_alike() -> None:
    counts, times = [5, 0, 3, 12], np.zeros(20)
    for seed in range(1000):
        rows = drawn_rows(seed, counts, 6)
        assert sum(map(len, rows)) == 6
        for first, each in zip((0, 5, 5, 8), rows, strict=True):
            assert (np.diff(each) > 0).all()
            times[first + each] += 1
    assert np.abs(times / 1000 - 0.3).max() < 0.06
    assert [len(each) for each in drawn_rows(0, counts, 99)] == counts


def test_the_budget_counts_work(tmp_path: Path) -> None:
    config = write_world(tmp_path).config
    sizes = {"user": 2 * 10**6, "item": 10**6}
    always = ALWAYS // config.dimension // (4 * 10**6)  # both sides of `follows`
    small = extent_of(config, 10**7, sizes, 10**6)
    assert (small.num_edges, small.is_sampled) == (always, True)
    assert f"take {number(10**7 / always)} times the budget of some minutes" in told(small, "test")
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
