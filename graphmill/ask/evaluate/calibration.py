"""Fit of probabilities of answers (`graphmill.model.calibration`) on held-out edges, and their measures.

An answer is one of the NUM_BEST candidates of a query that score highest and are no known edge; it is true
if it is a held-out edge. The temperature makes the softmax over the answers likeliest. The line of a relation
and a side is a logistic regression with a unit information prior (Kass and Wasserman, 1995): the pooled line
counts as much as one query, so that relations with few edges stay near it.

Shapes: Q queries, K answers, M answers of all queries, G groups: pairs of a relation and a side.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import Numbers
from graphmill.model.calibration import Floats, Line, probabilities, shares

SHOWN = (1, 10, 100)
"""Numbers of answers to a query that are measured."""
NUM_BINS = 15

_LARGEST = 100.0  # the temperature is at most so many times as large, or as small, as the scores' spread
_BISECTIONS = 24
_STEPS = 50
_PRECISION = 1e-6

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CalibrationAnswers:
    """Answers of queries, best first: scores [Q, K], -inf for none; which are true [Q, K]; groups [Q]."""

    score: npt.NDArray[np.float32]
    is_true: Bools
    group: Numbers


class Fit(NamedTuple):
    """A temperature, the pooled line, and the lines [G, 2] of some groups [G], sorted."""

    temperature: float
    pooled: Line
    groups: Numbers
    lines: Floats

    def probabilities(self, answers: CalibrationAnswers) -> Floats:
        """Probabilities of answers: [Q, K]."""
        every = np.vstack([self.lines, self.pooled])
        place_Q = np.searchsorted(self.groups, answers.group)
        is_there_Q = np.append(self.groups, -1)[place_Q] == answers.group
        line_Q2 = every[np.where(is_there_Q, place_Q, len(self.groups))]
        return probabilities(shares(answers.score, self.temperature), line_Q2[:, :1], line_Q2[:, 1:])


def fit(answers: CalibrationAnswers) -> Fit:
    """Fit a temperature and lines."""
    temperature = _temperature(answers)
    share_QK = shares(answers.score, temperature)
    is_there = np.isfinite(share_QK)
    share_M, true_M = share_QK[is_there], answers.is_true[is_there]
    query_M = np.nonzero(is_there)[0]
    groups, number_Q = np.unique(answers.group, return_inverse=True)
    first = _Prior(np.array([1.0, 0.0]), np.eye(2))  # the softmax itself
    none = np.zeros(len(share_M), np.int64)
    pooled, information = _lines(share_M, true_M, none, 1, first)
    one_query = _Prior(pooled[0], (information[0] + first.precision) / max(len(answers.group), 1))
    lines, _ = _lines(share_M, true_M, number_Q[query_M], len(groups), one_query)
    return Fit(temperature, Line(*pooled[0].tolist()), groups, lines)


def measure(fitted: Fit, answers: CalibrationAnswers) -> dict[str, Any]:
    """Measure probabilities on answers of other edges, for run.json.

    The expected calibration error is the mean distance between the mean probability and the share of true
    answers, in bins of equally many answers, sorted by probability.
    """
    probability_QK = fitted.probabilities(answers)
    figures: dict[str, Any] = {"num_queries": len(answers.group)}
    for k in SHOWN:
        is_there = np.isfinite(answers.score[:, :k])
        probability_M, true_M = probability_QK[:, :k][is_there], answers.is_true[:, :k][is_there]
        if not len(true_M):
            continue
        rate = float(true_M.mean())
        table = reliability(probability_M, true_M)
        error = sum(row["answers"] * abs(row["probability"] - row["true"]) for row in table)
        figures[f"top_{k}"] = {
            "num_answers": len(true_M),
            "true": rate,
            "ece": error / len(true_M),
            "brier": float(((probability_M - true_M) ** 2).mean()),
            "brier_base_rate": rate * (1 - rate),
            "reliability": table,
        }
    return figures


def reliability(probability_M: Floats, true_M: Bools) -> list[dict[str, float]]:
    """Answers, mean probability and share of true answers of each bin, those of low probability first."""
    bins = np.array_split(np.argsort(probability_M, kind="stable"), min(NUM_BINS, len(true_M)))
    return [
        {
            "answers": len(rows),
            "probability": float(probability_M[rows].mean()),
            "true": float(true_M[rows].mean()),
        }
        for rows in bins
    ]


def _temperature(answers: CalibrationAnswers) -> float:
    """The temperature at which true answers are likeliest, each as the only answer of its query.

    The mean score of the softmax grows with 1 / T, so a bisection finds where it is that of true answers.
    """
    num_true_Q = answers.is_true.sum(1)
    score_QK = answers.score[num_true_Q > 0].astype(np.float64)
    is_there = np.isfinite(score_QK)
    weight_Q, true_QK = num_true_Q[num_true_Q > 0], answers.is_true[num_true_Q > 0]
    finite_QK = np.where(is_there, score_QK, 0)
    mean_Q1 = finite_QK.sum(1, keepdims=True) / is_there.sum(1, keepdims=True)
    spread = float(np.sqrt(((finite_QK - mean_Q1) ** 2)[is_there].mean())) if len(score_QK) else 0.0
    if not spread:
        return 1.0
    total = float(finite_QK[true_QK].sum())
    low, high = np.log(spread / _LARGEST), np.log(spread * _LARGEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        expected_Q = (np.exp(shares(score_QK, np.exp(middle))) * finite_QK).sum(1)
        low, high = (middle, high) if float(weight_Q @ expected_Q) > total else (low, middle)
    return float(np.exp((low + high) / 2))


class _Prior(NamedTuple):
    """A normal prior of a line: mean [2] and precision [2, 2]."""

    mean: Floats
    precision: Floats


def _lines(
    share_M: Floats, true_M: Bools, group_M: Numbers, num_groups: int, prior: _Prior
) -> tuple[Floats, Floats]:
    """Likeliest lines [G, 2] of no negative slope, by Newton's steps; and their information [G, 2, 2]."""

    def sums(values_M: Floats) -> Floats:
        return np.bincount(group_M, values_M, num_groups).astype(np.float64)

    def loss(line_G2: Floats) -> Floats:
        odds_M = line_G2[group_M, 0] * share_M + line_G2[group_M, 1]
        away_G2 = line_G2 - prior.mean
        of_prior_G = ((away_G2 @ prior.precision) * away_G2).sum(1) / 2
        losses: Floats = sums(np.logaddexp(0, odds_M) - true_M * odds_M) + of_prior_G
        return losses

    line_G2 = np.tile(prior.mean, (num_groups, 1))
    loss_G, length_G1 = loss(line_G2), np.ones((num_groups, 1))
    for _ in range(_STEPS):
        probability_M = probabilities(share_M, line_G2[group_M, 0], line_G2[group_M, 1])
        error_M, weight_M = probability_M - true_M, probability_M * (1 - probability_M)
        slope_G2 = np.stack([sums(error_M * share_M), sums(error_M)], 1)
        slope_G2 += (line_G2 - prior.mean) @ prior.precision
        cross_G = sums(weight_M * share_M)
        flat = [sums(weight_M * share_M**2), cross_G, cross_G, sums(weight_M)]
        information_G22 = np.stack(flat, 1).reshape(-1, 2, 2)
        curvature_G22 = information_G22 + prior.precision
        is_bound_G = (line_G2[:, 0] <= 0) & (slope_G2[:, 0] > 0)  # the slope stays 0
        slope_G2[is_bound_G, 0] = 0
        curvature_G22[is_bound_G, 0, 1] = curvature_G22[is_bound_G, 1, 0] = 0
        step_G2 = np.linalg.solve(curvature_G22, slope_G2[:, :, None])[:, :, 0]
        if float((np.abs(step_G2) * length_G1).max(initial=0)) < _PRECISION:
            break
        next_G2 = line_G2 - length_G1 * step_G2
        next_G2[:, 0] = np.maximum(next_G2[:, 0], 0)
        next_loss_G = loss(next_G2)
        is_better_G1 = (next_loss_G <= loss_G)[:, None]
        line_G2 = np.where(is_better_G1, next_G2, line_G2)
        loss_G = np.where(is_better_G1[:, 0], next_loss_G, loss_G)
        length_G1 = np.where(is_better_G1, 1.0, length_G1 / 2)
    return line_G2, information_G22
