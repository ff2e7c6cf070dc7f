"""Probabilities of answers: the fit finds the numbers that answers were drawn with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.ask.evaluate import calibration
from graphmill.ask.evaluate.calibration import CalibrationAnswers, Fit
from graphmill.model.calibration import NUM_BEST, probabilities, shares
from graphmill.vocab import Side

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


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_shares_are_those_of_a_softmax() -> None:
    share_QK = shares(np.array([[2.0, 1.0, -np.inf], [-np.inf] * 3]), 0.5)
    assert np.exp(share_QK[0]).tolist() == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2)), 0])
    assert (share_QK[1] == -np.inf).all()
    assert shares(np.empty((3, 0)), 1.0).shape == (3, 0)


@given(st.integers(0, 2**32), st.floats(0.01, 100), st.floats(0, 50), st.floats(-50, 50))
def test_probabilities_are_between_0_and_1_and_rise_with_the_score(
    seed: int, temperature: float, slope: float, bias: float
) -> None:
    score_QK = -np.sort(-np.random.default_rng(seed).normal(scale=100, size=(4, 20)))
    found_QK = probabilities(shares(score_QK, temperature), slope, bias).astype(np.float32)
    assert ((found_QK > 0) & (found_QK < 1)).all()
    assert (np.diff(found_QK) <= 0).all()


@pytest.mark.parametrize("scale", [0.02, 1.0, 30.0])
def test_a_fit_finds_temperature_and_lines(rng: np.random.Generator, scale: float) -> None:
    """Whatever the scale of the scores; temperature and slope can make up for each other in part."""
    answers = drawn(rng, 3000, scale)
    found = calibration.fit(answers)
    assert found.groups.tolist() == sorted(GROUPS)
    assert 0.4 < found.temperature / scale < 2.5
    figures = calibration.measure(found, drawn(rng, 3000, scale))
    assert figures["top_10"]["ece"] < 0.02
    assert figures["top_100"]["ece"] < 0.003
    assert figures["top_10"]["brier"] < 0.95 * figures["top_10"]["brier_base_rate"]


def test_few_answers_stay_near_the_pooled_line(rng: np.random.Generator) -> None:
    answers = drawn(rng, 2000)
    answers.group[:] = 0
    answers.group[0] = 8
    answers.is_true[0] = False
    answers.is_true[0, 80] = True  # a bad answer of one query is the only true one
    found = calibration.fit(answers)
    assert found.groups.tolist() == [0, 8]
    slope, bias = found.lines[0]
    assert found.pooled == pytest.approx((slope, bias), abs=0.05)
    assert 0 < found.lines[1, 0] < slope
    alone = calibration.fit(
        CalibrationAnswers(*(each[1:] for each in (answers.score, answers.is_true, answers.group)))
    )
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
    found = calibration.fit(answers)
    assert np.isfinite([found.temperature, *found.pooled, *found.lines.reshape(-1)]).all()
    assert (found.lines[:, 0] >= 0).all()
    assert found.temperature > 0
    again = calibration.fit(answers)
    assert (again.temperature, again.pooled) == (found.temperature, found.pooled)
    assert again.lines.tobytes() == found.lines.tobytes()
    calibration.measure(found, answers)


def test_measures_by_hand() -> None:
    score_QK = np.log(np.array([[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]], np.float32) + 1e-30)
    score_QK[1, 2] = -np.inf
    is_true_QK = np.array([[True, False, False], [False, True, False]])
    answers = CalibrationAnswers(score_QK, is_true_QK, np.zeros(2, np.int64))
    exact = Fit(1.0, (1.0, 0.0), np.empty(0, np.int64), np.empty((0, 2)))  # type: ignore[arg-type]
    odds = np.array([0.6, 0.3, 0.1, 0.5, 0.5])
    expected = odds / (1 + odds)  # a line of slope 1 makes odds of shares
    true = np.array([1, 0, 0, 0, 1])
    found = calibration.measure(exact, answers)["top_10"]
    assert (found["num_answers"], found["true"]) == (5, 0.4)
    assert found["ece"] == pytest.approx(np.abs(expected - true).mean())  # a bin for each answer
    assert found["brier"] == pytest.approx(((expected - true) ** 2).mean())
    assert found["brier_base_rate"] == pytest.approx(0.24)
    assert calibration.measure(exact, answers)["top_1"]["num_answers"] == len(Side)
