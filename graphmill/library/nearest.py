"""The nearest of many vectors, read in parts.

Shapes: D dimension, N rows of a part, Q queries, K neighbours.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float32]


class Neighbor(NamedTuple):
    """A raw id, and the cosine of its vector with that which was asked for."""

    id: str
    similarity: float


def nearest(
    parts: Iterable[tuple[pa.Array, Floats]], queries_QD: Floats, leave_out: Sequence[str | None], k: int
) -> list[list[Neighbor]]:
    """The `k` rows with the largest cosine to each query, nearest first; of equal ones the earlier row.

    Rows that hold a NaN are near to nothing.

    Memory: one part, and K rows a query.

    Args:
        parts: ids (string [N]) and float32 [N, D].
        queries_QD: float32.
        leave_out: for each query, the id that is not its own neighbour.
        k: K, at most.
    """
    unit_QD = unit(queries_QD)
    best: list[list[Neighbor]] = [[] for _ in leave_out]
    for ids, vectors_ND in parts:
        cosine_NQ = unit(vectors_ND) @ unit_QD.T
        for query, own in enumerate(leave_out):
            best[query] = merged(best[query], ids, cosine_NQ[:, query], own, k)
    return best


def merged(
    best: list[Neighbor], ids: pa.Array, score_N: Floats, leave_out: str | None, k: int
) -> list[Neighbor]:
    """The `k` best of those so far and of a part's rows; of equal ones the earlier. NaN is no score."""
    few = min(k + 1, len(score_N))  # one more, for the id that is left out
    rows = np.sort(np.argpartition(-score_N, few - 1)[:few]) if few else np.empty(0, np.int64)
    rows = rows[np.isfinite(score_N[rows])]  # what is no number cannot be put in order
    names = ids.take(pa.array(rows)).to_pylist()
    found = zip(names, score_N[rows].tolist(), strict=True)
    candidates = best + [Neighbor(name, score) for name, score in found if name != leave_out]
    return sorted(candidates, key=lambda each: -each.similarity)[:k]


def unit(vectors_ND: Floats) -> Floats:
    """The vectors scaled to length 1; zero vectors stay."""
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.where(lengths > 0, lengths, 1), np.float32)
