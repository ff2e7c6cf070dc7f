"""95 % confidence intervals of metrics, from edges that were drawn without replacement.

The interval is normal: the mean of each side, 1.96 standard errors below and above. Errors of the two sides
count as if they went together, which errs on the side of width. Shapes: E edges.
"""

from collections.abc import Mapping

import numpy as np

from graphmill.ask.evaluate.metrics import HITS, Floats, Ranks
from graphmill.vocab import Side

_NORMAL = 1.959964


def intervals(ranks: Mapping[Side, Ranks], share: float) -> dict[str, list[float]]:
    """The interval of each metric over both sides; `share` of the split's edges are ranked.

    Returns none for a single edge, whose error is unknown.
    """
    by_side = [_contributions(each.middle) for each in ranks.values()]
    found = {}
    for name in by_side[0] if len(by_side[0]["mrr"]) > 1 else ():
        values = [of_side[name] for of_side in by_side]
        is_bounded = name != "mean_rank"
        margin = _NORMAL * float(np.mean([_error(value_E, share, is_bounded) for value_E in values]))
        mean = float(np.mean([value_E.mean() for value_E in values]))
        least, most = (0.0, 1.0) if is_bounded else (1.0, np.inf)
        found[name] = [float(max(mean - margin, least)), float(min(mean + margin, most))]
    return found


def _contributions(rank_E: Floats) -> dict[str, Floats]:
    """Contribution of each edge to every metric: [E]."""
    hits = {f"hits@{limit}": (rank_E <= limit).astype(np.float64) for limit in HITS}
    return {"mrr": 1 / rank_E, "mean_rank": rank_E} | hits


def _error(value_E: Floats, share: float, is_bounded: bool) -> float:
    """The standard error of a mean.

    Two more edges with a value of 0 and two with 1, as Agresti and Coull have them for proportions, keep the
    error above 0 where all values are the same.
    """
    squares = float(((value_E - value_E.mean()) ** 2).sum()) + (2.0 if is_bounded else 0.0)
    return float(np.sqrt((1 - share) * squares)) / len(value_E)
