"""Probabilities of answers, from the scores of the best candidates of a query.

The training of a query leaves its scores shifted by any constant. So a score is compared with the best
candidates of its query that are no known edges, NUM_BEST of them or as many as there are:

    share        x = s / T - log sum exp(s' / T), over the scores s' of the best candidates
    probability  p = 1 / (1 + exp(-(slope x + bias)))

T is the temperature, one for the model; slope and bias belong to a relation and a side of the answers. Among
the answers of a query, p never falls while the score rises.

Shapes: Q queries, K best candidates.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_BEST = 100

_NO_SHARE = -1e100  # in the place of -inf, which a slope of 0 cannot be multiplied with
_LEAST = float(np.finfo(np.float32).tiny)
_MOST = float(np.nextafter(np.float32(1), np.float32(0)))  # a float32 below 1


class Line(NamedTuple):
    """The log odds of an answer, over its share."""

    slope: float
    bias: float


class Scale(NamedTuple):
    """The numbers that turn scores of one relation and side into probabilities."""

    temperature: float
    line: Line


def shares(score_QK: npt.NDArray[Any], temperature: float) -> Floats:
    """Shares of candidates, best first; NUM_BEST of them are in the sum; -inf where there is none: [Q, K]."""
    if not score_QK.shape[1]:
        return np.empty(score_QK.shape)
    scaled_QK = np.asarray(score_QK, np.float64) / temperature
    most_Q1 = scaled_QK[:, :1]
    most_Q1 = np.where(np.isfinite(most_Q1), most_Q1, 0)  # a query without candidates
    scaled_QK -= most_Q1
    sum_Q1 = np.exp(scaled_QK[:, :NUM_BEST]).sum(1, keepdims=True)
    share_QK: Floats = scaled_QK - np.log(np.maximum(sum_Q1, 1))
    return share_QK


def probabilities(share: Floats, slope: npt.ArrayLike, bias: npt.ArrayLike) -> Floats:
    """Probabilities of shares, above 0 and below 1 even as float32."""
    odds = np.asarray(slope) * np.maximum(share, _NO_SHARE) + np.asarray(bias)
    with np.errstate(over="ignore"):
        probability: Floats = np.clip(1 / (1 + np.exp(-odds)), _LEAST, _MOST)
    return probability
