"""What ranking found, and the figures that are made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.vocab import Side

HITS = (1, 3, 10, 50)


@dataclass(frozen=True, eq=False)
class Ranks:
    """For each ranked side of each edge: how many others score higher, how many the same."""

    greater: npt.NDArray[np.int64]
    equal: npt.NDArray[np.int64]

    def metrics(self) -> dict[str, float]:
        """Means over all ranks; of equal candidates half come first, or with `_pessimistic` all."""
        best = 1.0 + self.greater
        return _metrics(best + self.equal / 2, "") | _metrics(best + self.equal, "_pessimistic")

    def sides(self) -> dict[Side, "Ranks"]:
        """The ranks of each side, as `rank` lines them up: all edges' lhs, then all edges' rhs."""
        halves = zip(np.split(self.greater, len(Side)), np.split(self.equal, len(Side)), strict=True)
        return {side: Ranks(*half) for side, half in zip(Side, halves, strict=True)}


def joined(parts: Sequence[Ranks]) -> Ranks:
    """All ranks of all parts."""
    return Ranks(
        np.concatenate([part.greater for part in parts]), np.concatenate([part.equal for part in parts])
    )


def _metrics(ranks: npt.NDArray[np.floating[Any]], suffix: str) -> dict[str, float]:
    figures = {"mrr": float((1 / ranks).mean()), "mean_rank": float(ranks.mean())}
    figures |= {f"hits@{k}": float((ranks <= k).mean()) for k in HITS}
    return {name + suffix: value for name, value in figures.items()}
