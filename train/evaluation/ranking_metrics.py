"""Ranking metrics: MRR, mean rank and hits@k of the ranks of edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HITS = (1, 3, 10, 50)


@dataclass(frozen=True, eq=False)
class Ranks:
    """For each edge: the number of other candidates that score higher, and of those that score the same."""

    greater: npt.NDArray[np.int64]
    equal: npt.NDArray[np.int64]

    def metrics(self) -> dict[str, float]:
        """Means over all ranks. Half of the equal candidates come first; with `_pessimistic` all of them."""
        best = 1.0 + self.greater
        return _metrics(best + self.equal / 2, "") | _metrics(best + self.equal, "_pessimistic")


def concatenated(parts: Sequence[Ranks]) -> Ranks:
    """The ranks of all parts."""
    return Ranks(
        np.concatenate([part.greater for part in parts]), np.concatenate([part.equal for part in parts])
    )


def _metrics(ranks: npt.NDArray[np.floating[Any]], suffix: str) -> dict[str, float]:
    figures = {"mrr": float((1 / ranks).mean()), "mean_rank": float(ranks.mean())}
    figures |= {f"hits@{k}": float((ranks <= k).mean()) for k in HITS}
    return {name + suffix: value for name, value in figures.items()}
