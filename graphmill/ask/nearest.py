"""The nearest of many vectors, read in parts.

Shapes: D dimension, N rows of a part, Q queries, K neighbours.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.ask.scan import TopK
from graphmill.errors import closest
from graphmill.model import comparators

Floats = npt.NDArray[np.float32]
Score = Callable[[Floats], Floats]  # vectors [N, D] -> their scores for each query [N, Q]


_MAX_CLOSE = 10_000


def close_id(raw_id: str, batches: Iterable[pa.Array]) -> str:
    """The end of a message about an unknown id: "; did you mean ...?", or "".

    Compares at most `_MAX_CLOSE` ids that share the beginning, the end or both with the id, of those in
    `batches` (string [N]).
    """
    size = len(raw_id)
    near_ids: list[str] = []
    for ids in batches:
        near = ids.filter(pc.less_equal(pc.abs(pc.subtract(pc.utf8_length(ids), size)), 2))
        begins = [pc.starts_with(near, raw_id[:n], ignore_case=True) for n in (size // 3, size * 2 // 3)]
        ends = [pc.ends_with(near, raw_id[size - n :], ignore_case=True) for n in (size // 3, size * 2 // 3)]
        is_close = pc.or_(pc.or_(begins[1], ends[1]), pc.and_(begins[0], ends[0]))
        near_ids += near.filter(is_close).slice(0, _MAX_CLOSE - len(near_ids)).to_pylist()
        if len(near_ids) >= _MAX_CLOSE:
            break
    close = closest(raw_id, near_ids)
    return f"; did you mean {close!r}?" if close else ""


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
    best, names, first = TopK(len(leave_out), k), dict[int, str](), 0
    queries = np.arange(len(leave_out))
    for ids, vectors_ND in parts:
        score_QN = np.array(score(vectors_ND).T, np.float32, order="C")
        score_QN[~np.isfinite(score_QN)] = -np.inf  # NaN has no place in an order
        for query, own in enumerate(leave_out):
            if own is not None:
                score_QN[query, pc.equal(ids, own).to_numpy(zero_copy_only=False)] = -np.inf
        best.add(queries, score_QN, np.arange(first, first + len(ids)))
        held = np.unique(best.result().candidate)
        new = held[held >= first]
        names = {number: names[number] for number in held[held < first].tolist()}
        names |= zip(new.tolist(), ids.take(pa.array(new - first)).to_pylist(), strict=True)
        first += len(ids)
    neighbors: list[list[Neighbor]] = [[] for _ in leave_out]
    for query, value, number in zip(*best.result(), strict=True):
        neighbors[query].append(Neighbor(names[int(number)], float(value)))
    return neighbors


def by_cosine(queries_QD: Floats) -> Score:
    """Score vectors by their cosine with each query."""
    unit_DQ = unit(queries_QD).T
    return lambda vectors_ND: unit(vectors_ND) @ unit_DQ


def unit(vectors_ND: Floats) -> Floats:
    """The vectors scaled to length 1; zero vectors stay."""
    return comparators.prepare("cos", False, vectors_ND)
