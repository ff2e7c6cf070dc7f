"""The nearest of many vectors, read in parts.

Shapes: D dimension, N rows of a part, Q queries, K neighbours.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.model import comparators

Floats = npt.NDArray[np.float32]
Score = Callable[[Floats], Floats]  # vectors [N, D] -> their scores for each query [N, Q]


class Neighbor(NamedTuple):
    """A raw id, and the score of its vector for the query: the cosine, or the model's score."""

    id: str
    similarity: float


def nearest(
    parts: Iterable[tuple[pa.Array, Floats]], score: Score, leave_out: Sequence[str | None], k: int
) -> list[list[Neighbor]]:
    """The `k` rows with the highest scores for each query, best first; the earlier of equal rows first.

    Rows with a NaN score are left out. Memory: one part, and K rows per query.

    Args:
        parts: ids (string [N]) and float32 [N, D].
        score: such as `by_cosine`.
        leave_out: for each query, the id that is not its own neighbour.
        k: K, at most.
    """
    best: list[list[Neighbor]] = [[] for _ in leave_out]
    for ids, vectors_ND in parts:
        score_NQ = score(vectors_ND)
        for query, own in enumerate(leave_out):
            best[query] = _merged(best[query], ids, score_NQ[:, query], own, k)
    return best


def by_cosine(queries_QD: Floats) -> Score:
    """Score vectors by their cosine with each query."""
    unit_DQ = unit(queries_QD).T
    return lambda vectors_ND: unit(vectors_ND) @ unit_DQ


def unit(vectors_ND: Floats) -> Floats:
    """The vectors scaled to length 1; zero vectors stay."""
    return comparators.prepare("cos", False, vectors_ND)


def _merged(
    best: list[Neighbor], ids: pa.Array, score_N: Floats, leave_out: str | None, k: int
) -> list[Neighbor]:
    """The `k` best of the neighbours so far and of a part's rows."""
    few = min(k + 1, len(score_N))  # one more, for the id that is left out
    rows = np.sort(np.argpartition(-score_N, few - 1)[:few]) if few else np.empty(0, np.int64)
    rows = rows[np.isfinite(score_N[rows])]  # NaN has no place in an order
    names = ids.take(pa.array(rows)).to_pylist()
    found = zip(names, score_N[rows].tolist(), strict=True)
    candidates = best + [Neighbor(name, score) for name, score in found if name != leave_out]
    return sorted(candidates, key=lambda each: -each.similarity)[:k]
