"""The best candidates of some queries, from scores that come tile by tile.

A score that does not exceed a query's K-th best so far is no answer: most tiles need a single comparison.
Candidates come in the order of their numbers: among equal scores, the
smaller number is kept and stands first.

Shapes: P queries, K answers, N candidates of a tile, M candidates that are held.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Keep = Callable[[Numbers, Numbers], npt.NDArray[np.bool_]]  # queries [M], candidates [M] -> which to keep

HELD_BYTES = 40
"""Memory for one candidate that is held, sorting included."""
_FEWEST = 1 << 14


class Answers(NamedTuple):
    """Answers, those of the first query first, best first: query, score and candidate, [M] each."""

    query: Numbers
    score: Floats
    candidate: Numbers


class Best:
    """The `k` best candidates of each of `num_queries` queries."""

    def __init__(self, num_queries: int, k: int) -> None:
        self._k, self._num_queries = k, num_queries
        self._least_P1 = np.full((num_queries, 1), -np.inf, np.float32)
        self._held = Answers(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64))
        self._new: list[Answers] = []
        self._num_new = 0

    def add(self, score_PN: Floats, first: int, keep: Keep | None = None) -> None:
        """Take the scores of the candidates `first`, `first` + 1, ...; `keep` chooses among the best."""
        found = np.flatnonzero(score_PN > self._least_P1)
        if not len(found):
            return
        query, column = np.divmod(found, score_PN.shape[1])
        new = Answers(query, score_PN.reshape(-1)[found], column + first)
        if keep is not None:
            kept = keep(new.query, new.candidate)
            new = Answers(new.query[kept], new.score[kept], new.candidate[kept])
        self._take(new)

    def _take(self, new: Answers) -> None:
        self._new.append(new)
        self._num_new += len(new.query)
        if self._num_new > max(self._num_queries * self._k, _FEWEST):
            self.shrink()

    def shrink(self) -> Answers:
        """Forget all but the best, and return them."""
        if self._new:
            parts = zip(self._held, *self._new, strict=True)
            query, score, candidate = (np.concatenate(part) for part in parts)
            order = self._order(query.astype(np.uint64) << np.uint64(32) | _descending(score), candidate)
            query = query[order]
            first_P = np.searchsorted(query, np.arange(self._num_queries))
            place = np.arange(len(query)) - first_P[query]
            self._least_P1[query[place == self._k - 1], 0] = score[order[place == self._k - 1]]
            kept = order[place < self._k]
            self._held = Answers(query[place < self._k], score[kept], candidate[kept])
            self._new, self._num_new = [], 0
        return self._held

    def _order(self, key: npt.NDArray[np.uint64], candidate: Numbers) -> npt.NDArray[np.intp]:
        """Sort by query, then score. Stable: of equal scores, earlier candidates stay first."""
        return np.argsort(key, kind="stable")


class UnorderedBest(Best):
    """The same for candidates that come in any order, and for some of the queries at a time."""

    def add_rows(self, query_P: Numbers, score_PN: Floats, candidate_N: Numbers) -> None:
        """Take the scores of the queries `query_P` for some candidates; -inf is no answer."""
        least_P1 = np.maximum(self._least_P1[query_P], np.finfo(np.float32).min)
        is_found_PN = score_PN >= least_P1  # of equal scores, a smaller number may come later
        crowded = np.flatnonzero(np.count_nonzero(is_found_PN, axis=1) > self._k)
        if len(crowded):
            own = score_PN[crowded]
            place = own.shape[1] - self._k
            raised = np.maximum(least_P1[crowded], np.partition(own, place, axis=1)[:, place, None])
            self._least_P1[query_P[crowded]] = raised
            is_found_PN[crowded] = own >= raised
        found = np.flatnonzero(is_found_PN)
        if len(found):
            query, column = np.divmod(found, score_PN.shape[1])
            self._take(Answers(query_P[query], score_PN.reshape(-1)[found], candidate_N[column]))

    def _order(self, key: npt.NDArray[np.uint64], candidate: Numbers) -> npt.NDArray[np.intp]:
        order = np.argsort(key)
        ascending = key[order]
        is_tied = np.zeros(len(key), bool)
        equal = ascending[1:] == ascending[:-1]
        is_tied[1:] |= equal
        is_tied[:-1] |= equal
        tied = order[is_tied]  # few, which are sorted apart
        order[is_tied] = tied[np.lexsort((candidate[tied], key[tied]))]
        return order


def _descending(score: Floats) -> npt.NDArray[np.uint64]:
    """Number scores so that a higher one has a smaller number, of 32 bits."""
    bits = (score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    ascending = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (~ascending).astype(np.uint64)
