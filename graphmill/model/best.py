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
MOST_UNORDERED = 1 << 32
"""Candidates of `UnorderedBest`, at most."""
_FEWEST = 1 << 14
_HALF = np.uint64(32)
_NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOWEST = np.finfo(np.float32).min  # -inf is no answer


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
            key = query.astype(np.uint64) << _HALF | _descending(score)
            order = np.argsort(key, kind="stable")  # of equal scores, earlier candidates stay first
            query = query[order]
            first_P = np.searchsorted(query, np.arange(self._num_queries))
            place = np.arange(len(query)) - first_P[query]
            self._least_P1[query[place == self._k - 1], 0] = score[order[place == self._k - 1]]
            kept = order[place < self._k]
            self._held = Answers(query[place < self._k], score[kept], candidate[kept])
            self._new, self._num_new = [], 0
        return self._held


class UnorderedBest:
    """The same for candidates that come in any order, and for some of the queries at a time.

    Each query has room for 2 K candidates. One number holds score and candidate, so that the smallest numbers
    are the best. Where the room ends, a query forgets all but its K smallest.
    """

    def __init__(self, num_queries: int, k: int) -> None:
        self._k = k
        self._held_PM = np.full((num_queries, 2 * k), _NOTHING)
        self._num_held_P = np.zeros(num_queries, np.int64)
        self._least_P = np.full(num_queries, _LOWEST)

    def add_rows(self, query_P: Numbers, score_PN: Floats, candidate_N: Numbers) -> None:
        """Take the scores of the queries `query_P` for some candidates; -inf is no answer."""
        least_P = self._least_P[query_P]
        if score_PN.shape[1] > self._k:
            self._raise(least_P, score_PN, np.flatnonzero(least_P == _LOWEST))
        found, bounds = _reaching(score_PN, least_P)  # of equal scores, a smaller number may come later
        crowded = np.flatnonzero(np.diff(bounds) > self._k)
        if len(crowded):
            self._raise(least_P, score_PN, crowded)
            found, bounds = _reaching(score_PN, least_P)
        self._least_P[query_P] = least_P
        count_P = np.diff(bounds)
        if count_P.max(initial=0) > self._k:  # many equal scores
            for columns in np.array_split(np.arange(len(candidate_N)), 2):
                self.add_rows(query_P, score_PN[:, columns], candidate_N[columns])
            return
        self._shrink(query_P[self._num_held_P[query_P] + count_P > 2 * self._k])
        row = np.repeat(np.arange(len(query_P)), count_P)
        column = found - row * score_PN.shape[1]
        first_P = query_P * (2 * self._k) + self._num_held_P[query_P] - bounds[:-1]
        key = _descending(score_PN.reshape(-1)[found]) << _HALF | candidate_N[column].astype(np.uint64)
        self._held_PM.reshape(-1)[first_P[row] + np.arange(len(found))] = key
        self._num_held_P[query_P] += count_P

    def _raise(self, least_P: Floats, score_PN: Floats, rows: Numbers) -> None:
        """Raise what some rows must reach to the K-th best of their scores."""
        own = np.partition(score_PN[rows], -self._k, axis=1)[:, -self._k]
        least_P[rows] = np.maximum(least_P[rows], own)

    def _shrink(self, query_P: Numbers) -> None:
        """Forget all but the best of queries that have more than K."""
        key_PM = np.partition(self._held_PM[query_P], self._k - 1, axis=1)
        self._least_P[query_P] = _score(key_PM[:, self._k - 1])
        key_PM[:, self._k :] = _NOTHING
        self._held_PM[query_P], self._num_held_P[query_P] = key_PM, self._k

    def answers(self) -> Answers:
        """All answers."""
        self._held_PM.sort(axis=1)
        key_PK = self._held_PM[:, : self._k]
        is_held_PK = key_PK != _NOTHING
        query = np.repeat(np.arange(len(key_PK)), np.count_nonzero(is_held_PK, axis=1))
        key = key_PK[is_held_PK]
        return Answers(query, _score(key), (key & np.uint64(MOST_UNORDERED - 1)).astype(np.int64))


def _reaching(score_PN: Floats, least_P: Floats) -> tuple[Numbers, Numbers]:
    """Positions of the scores that are not below those of their queries; where each query's begin [P + 1]."""
    num_queries, num_candidates = score_PN.shape
    found = np.flatnonzero(score_PN >= least_P[:, None])
    return found, np.searchsorted(found, np.arange(num_queries + 1) * num_candidates)


def _descending(score: Floats) -> npt.NDArray[np.uint64]:
    """Number scores so that a higher one has a smaller number, of 32 bits."""
    bits = (score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    ascending = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (~ascending).astype(np.uint64)


def _score(key: npt.NDArray[np.uint64]) -> Floats:
    """The scores that `_descending` has put into the upper half of numbers."""
    ascending = ~(key >> _HALF).astype(np.uint32)
    bits = np.where(ascending >> np.uint32(31), ascending ^ np.uint32(1 << 31), ~ascending)
    return bits.view(np.float32)
