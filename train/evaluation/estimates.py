"""Metrics of all entities and all edges from those that are drawn, with 95 % confidence intervals.

Let K of an edge's N rivals score higher, and let m of the N be drawn without replacement. Then the number k
of drawn rivals that score higher is hypergeometric. An edge's contribution to a metric is estimated between
two bounds. Each holds in expectation over the draw, whatever K is:

rank 1 + K      1 + k N / m is unbiased: E k = K m / N. Both bounds are this estimate.
1 / (1 + K)     Above: 1 / (1 + k N / m), by Jensen's inequality, as 1 / (1 + x) is convex. The estimate.
                Below: (m + 1) / ((N + 1) (k + 1)), whose expectation is (1 - q) / (K + 1), where q is the
                probability that m + 1 drawn of N + 1 meet none of K + 1.
1 + K <= h      Let t = floor((h - 1) m / N), F(K) = P(k <= t). F falls with K. Above: [k <= t] / F(h - 1).
                Below: ([k <= t] - F(h)) / (1 - F(h)). The estimate is [1 + k N / m <= h].

With m = N the bounds meet: estimates are exact. The gap shows what candidates cannot tell: with m / N of 1 %,
ranks 1 and 10 look alike. No unbiased estimate of hits or reciprocal ranks exists, since an expectation over
k is a polynomial in K of degree m at most (Krichene and Rendle, On Sampled Metrics for Item Recommendation,
KDD 2020, discuss such estimates).

The interval is normal: [mean below - 1.96 s, mean above + 1.96 s], where s is the standard error over edges
that were drawn without replacement, or over blocks of queries where candidates are drawn for blocks. Errors
of the two sides count as if they went together, which errs on the side of width.

A half of the candidates with the same score counts as higher. Shapes: E edges.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from graphmill.vocab import Side
from train.evaluation.metrics import HITS, Floats, Ranks
from train.evaluation.queries import Numbers

_NORMAL = 1.959964


class _Bounds(NamedTuple):
    """Contribution of each edge to a metric, at least and at most in expectation: [E]."""

    below: Floats
    above: Floats


def intervals(ranks: Mapping[Side, Ranks], share: float) -> dict[str, list[float]]:
    """The interval of each metric over both sides; `share` of the split's edges are ranked.

    Returns none for a single edge, whose error is unknown.
    """
    by_side = [(each, _bounds(each)) for each in ranks.values()]
    found = {}
    for name in by_side[0][1] if len(by_side[0][0].greater) > 1 else ():
        is_bounded = name != "mean_rank"
        below = above = 0.0
        for of_side, bounds in by_side:
            errors = (_error(each, of_side, share, is_bounded) for each in bounds[name])
            margin_below, margin_above = (_NORMAL * each for each in errors)
            below += (bounds[name].below.mean() - margin_below) / len(by_side)
            above += (bounds[name].above.mean() + margin_above) / len(by_side)
        least, most = (0.0, 1.0) if is_bounded else (1.0, np.inf)
        found[name] = [float(max(below, least)), float(min(above, most))]
    return found


def _error(value_E: Floats, ranks: Ranks, share: float, is_bounded: bool) -> float:
    """The standard error of a mean.

    Two more edges with a value of 0 and two with 1, as Agresti and Coull have them for proportions, keep the
    error above 0 where all values are the same.
    """
    off_E = value_E - value_E.mean()
    factor = 1 - share
    if ranks.cluster is not None:
        off_E = np.bincount(ranks.cluster, off_E)
        factor = len(off_E) / max(len(off_E) - 1, 1)
    squares = float((off_E**2).sum()) + (2.0 if is_bounded else 0.0)
    return float(np.sqrt(factor * squares)) / len(value_E)


def _bounds(ranks: Ranks) -> dict[str, _Bounds]:
    """The bounds of every metric."""
    rank_E = ranks.middle
    bounds = {"mrr": _reciprocal(ranks), "mean_rank": _Bounds(rank_E, rank_E)}
    return bounds | {f"hits@{limit}": _hits(ranks, limit) for limit in HITS}


def _reciprocal(ranks: Ranks) -> _Bounds:
    higher_E = ranks.greater + ranks.equal / 2
    if ranks.drawn is None or ranks.there is None:
        return _Bounds(1 / (1 + higher_E), 1 / (1 + higher_E))
    below_E = (ranks.drawn + 1) / ((ranks.there + 1) * (higher_E + 1))
    return _Bounds(below_E, np.where(ranks.drawn > 0, 1 / ranks.middle, 1.0))


def _hits(ranks: Ranks, limit: int) -> _Bounds:
    if ranks.drawn is None or ranks.there is None:
        found_E = (ranks.middle <= limit).astype(np.float64)
        return _Bounds(found_E, found_E)
    num_E, drawn_E = ranks.there, ranks.drawn
    most_E = (limit - 1) * drawn_E // np.maximum(num_E, 1)
    is_hit_E = ranks.greater + ranks.equal / 2 <= most_E
    at_last_E, beyond_E = (_probability(most_E, higher, num_E, drawn_E) for higher in (limit - 1, limit))
    below_E = np.divide(is_hit_E - beyond_E, 1 - beyond_E, out=np.zeros(len(num_E)), where=beyond_E < 1)
    is_certain_E = num_E < limit  # all ranks are hits
    return _Bounds(np.where(is_certain_E, 1.0, below_E), np.where(is_certain_E, 1.0, is_hit_E / at_last_E))


def _probability(most_E: Numbers, higher: int, num_E: Numbers, drawn_E: Numbers) -> Floats:
    """The probability that `drawn` of `num` candidates have at most `most` of the `higher` ones: [E].

    Draw as the `higher` ones see it: k of them are drawn with the probability
    C(higher, k) (m)_k (N - m)_(higher - k) / (N)_higher, in falling factorials.
    """
    total_E = np.zeros(len(num_E))
    for k in range(min(higher, int(most_E.max(initial=0))) + 1):
        mass_E = np.full(len(num_E), float(math.comb(higher, k)))
        for i in range(higher):
            favourable_E = drawn_E - i if i < k else num_E - drawn_E - (i - k)
            mass_E *= np.maximum(favourable_E, 0) / np.maximum(num_E - i, 1)
        total_E += np.where(k <= most_E, mass_E, 0.0)
    return np.minimum(total_E, 1.0)
