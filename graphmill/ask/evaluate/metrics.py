"""Ranking metrics: of all edges, by side, by relation, by the degree of the entity that was ranked.

The breakdown in run.json stays small: the relations with most edges, and a few bands of degrees. A degree is
the number of an entity's edges among the edges that were trained on.

Shapes: E edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import Numbers, Triples
from graphmill.vocab import Side

HITS = (1, 3, 10, 50)
PESSIMISTIC = "_pessimistic"  # ends the names of metrics in which all ties count against the edge
MAX_RELATIONS = 100
MAX_UNRANKED = 5
NORMAL = 1.959964  # 95 % of a normal distribution lie within so many standard errors
FIRST_DEGREES = (0, 1, 3, 10, 30, 100, 300, 1000, 10_000)  # the first degree of each band

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ranks:
    """Counts per edge: other candidates that score higher, and those that score the same."""

    greater: Numbers
    equal: Numbers

    @property
    def middle(self) -> Floats:
        """Ranks where half of the equal candidates come first: [E]."""
        return 1.0 + self.greater + self.equal / 2

    def metrics(self) -> dict[str, float]:
        """Means over all ranks. Half of the equal candidates come first; with `_pessimistic` all of them."""
        kinds = {"": self.middle, PESSIMISTIC: self.middle + self.equal / 2}
        return {
            f"{name}{suffix}": float(value_E.mean())
            for suffix, rank_E in kinds.items()
            for name, value_E in _contributions(rank_E).items()
        }


def _contributions(rank_E: Floats) -> dict[str, Floats]:
    """Contribution of each edge to every metric: [E]."""
    hits = {f"hits@{limit}": (rank_E <= limit).astype(np.float64) for limit in HITS}
    return {"mrr": 1 / rank_E, "mean_rank": rank_E} | hits


def intervals(ranks: Mapping[Side, Ranks], share: float) -> dict[str, list[float]]:
    """Compute the 95 % interval of each metric over both sides, of a share of edges that was drawn.

    It is the mean of each side, 1.96 standard errors below and above; none for a single edge. Errors of both
    sides count as if they went together, so intervals are rather too wide. Means that are shares have four
    more edges, two of them 1, as Agresti and Coull do.
    """
    by_side = [_contributions(rank.middle) for rank in ranks.values()]
    interval_of = {}
    for name in by_side[0] if len(by_side[0]["mrr"]) > 1 else ():
        is_bounded, errors, means = name != "mean_rank", [], []
        for value_E in (of_side[name] for of_side in by_side):
            squares = float(((value_E - value_E.mean()) ** 2).sum()) + (2.0 if is_bounded else 0.0)
            errors.append(float(np.sqrt((1 - share) * squares)) / len(value_E))
            means.append(value_E.mean())
        margin, mean = NORMAL * float(np.mean(errors)), float(np.mean(means))
        least, most = (0.0, 1.0) if is_bounded else (1.0, np.inf)
        interval_of[name] = [float(max(mean - margin, least)), float(min(mean + margin, most))]
    return interval_of


def concatenated(parts: Sequence[Ranks]) -> Ranks:
    """The ranks of all parts."""
    return Ranks(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("greater", "equal")))


def break_down(
    ranks: Mapping[Side, Ranks],
    edges: Triples,
    degree_of: Mapping[Side, Numbers],
    names: Sequence[str],
    baselines: Mapping[str, Mapping[Side, Floats]] | None = None,
) -> dict[str, Any]:
    """The breakdown, for run.json.

    Args:
        ranks: ranks of each side, in the order of the edges.
        edges: the ranked edges.
        degree_of: trained edges of the entity on each side, in the order of the edges.
        names: names of the relations, by their number.
        baselines: reciprocal ranks of the same edges in simple rankings, for an MRR of each relation.
    """
    rank_of = {side: rank.middle for side, rank in ranks.items()}
    numbers, counts = np.unique(edges.rel, return_counts=True)
    shown = np.argsort(-counts, kind="stable")[:MAX_RELATIONS]
    unranked = np.setdiff1d(np.arange(len(names)), numbers)
    return {
        "metrics_by_side": {side.value: _metrics(rank_E) for side, rank_E in rank_of.items()},
        "metrics_by_relation": [
            {"relation": names[number]}
            | {
                side.value: _metrics(rank_E[edges.rel == number])
                | {
                    f"mrr_{name}": float(of_side[side][edges.rel == number].mean())
                    for name, of_side in (baselines or {}).items()
                }
                for side, rank_E in rank_of.items()
            }
            for number in numbers[shown].tolist()
        ],
        "num_relations_ranked": len(numbers),
        "num_relations_unranked": len(unranked),
        "relations_unranked": [names[number] for number in unranked[:MAX_UNRANKED].tolist()],
        "metrics_by_degree": _by_degree(rank_of, degree_of),
    }


def _by_degree(rank_of: Mapping[Side, Floats], degree_of: Mapping[Side, Numbers]) -> list[dict[str, Any]]:
    bands = []
    for first, end in zip(FIRST_DEGREES, (*FIRST_DEGREES[1:], np.inf), strict=True):
        within = {side: rank_of[side][(num_E >= first) & (num_E < end)] for side, num_E in degree_of.items()}
        if any(map(len, within.values())):
            band = {side.value: _metrics(rank_E) for side, rank_E in within.items()}
            bands.append({"first": first, "last": None if end == np.inf else int(end) - 1} | band)
    return bands


def _metrics(ranks: Floats) -> dict[str, float]:
    means = {"mrr": float((1 / ranks).mean()), "hits@10": float((ranks <= 10).mean())} if len(ranks) else {}
    return {"num_edges": len(ranks)} | means
