"""Queries against candidates, and the best of them: candidates come once, in blocks, and meet all queries.

A matrix product may round differently at its edges. So all products have the same shape, HEIGHT queries and
WIDTH candidates, padded with zeros: the answers do not depend on the sizes of blocks.

Shapes: Q queries, N candidates of a block, D dimension, K answers, M answers or candidates that are held,
P queries of a tile, L pairs of a query and a candidate that are left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from graphmill.ask.entities import EntityTable, Numbers
from graphmill.ask.relation import Relation, check_magnitude
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.sorted_arrays import distinct
from graphmill.vocab import Side

Pairs = Iterator[tuple[Numbers, Numbers]]  # queries, and rows of candidates of a partition: [L] each

HEIGHT = 128
WIDTH = 2048
_LOWEST = np.finfo(np.float32).min  # -inf is no answer
_NOTHING = complex(np.inf, 0)


class Answers(NamedTuple):
    """Answers, those of the first query first, best first: query, score and candidate, [M] each."""

    query: Numbers
    score: Floats
    candidate: Numbers

    @property
    def place(self) -> Numbers:
        """Place of each answer among those of its query, from 0: [M]."""
        return np.arange(len(self.query)) - np.searchsorted(self.query, self.query)

    def cut(self, k: int) -> "Answers":
        """The `k` best answers of each query."""
        is_kept = self.place < k
        return Answers(self.query[is_kept], self.score[is_kept], self.candidate[is_kept])

    def table(self, num_queries: int, k: int) -> tuple[Floats, Numbers]:
        """Scores, -inf for none, and candidates of at most `k` answers of each query: [Q, K] each."""
        score_QK = np.full((num_queries, k), -np.inf, np.float32)
        candidate_QK = np.zeros((num_queries, k), np.int64)
        score_QK[self.query, self.place] = self.score
        candidate_QK[self.query, self.place] = self.candidate
        return score_QK, candidate_QK


class TopK:
    """The `k` best candidates of each query, from scores that come for any queries and candidates.

    Among equal scores, the smaller number of a candidate is better. One complex number holds both: numpy
    orders these by their real part, then by their imaginary part. A query has room for 2 K candidates. Where
    the room ends, it forgets all but its K best.
    """

    HELD_BYTES = 56
    """Memory for one answer, with the room for others."""

    def __init__(self, num_queries: int, k: int) -> None:
        self._k = k
        self._held_QM = np.full((num_queries, min(2 * k, WIDTH)), _NOTHING)
        self._num_held_Q = np.zeros(num_queries, np.int64)
        self._least_Q = np.full(num_queries, _LOWEST)

    def add(self, query_P: Numbers, score_PN: Floats, candidate_N: Numbers) -> None:
        """Take the scores of distinct queries for some candidates; -inf is no answer."""
        least_P = self._least_Q[query_P]
        if score_PN.shape[1] > self._k:
            self._raise(least_P, score_PN, np.flatnonzero(least_P == _LOWEST))
        position, bounds = _reaching(score_PN, least_P)  # of equal scores, a smaller number may come later
        crowded = np.flatnonzero(np.diff(bounds) > self._k)
        if len(crowded):
            self._raise(least_P, score_PN, crowded)
            position, bounds = _reaching(score_PN, least_P)
        self._least_Q[query_P] = least_P
        count_P = np.diff(bounds)
        if count_P.max(initial=0) > self._k:  # many equal scores
            for columns in np.array_split(np.arange(len(candidate_N)), 2):
                self.add(query_P, score_PN[:, columns], candidate_N[columns])
            return
        self._make_room(query_P, count_P)
        row = np.repeat(np.arange(len(query_P)), count_P)
        first_P = query_P * self._held_QM.shape[1] + self._num_held_Q[query_P] - bounds[:-1]
        key = np.empty(len(position), complex)
        key.real, key.imag = -score_PN.reshape(-1)[position], candidate_N[position - row * score_PN.shape[1]]
        self._held_QM.reshape(-1)[first_P[row] + np.arange(len(position))] = key
        self._num_held_Q[query_P] += count_P

    def result(self) -> Answers:
        """All answers; more scores may follow."""
        self._held_QM.sort(axis=1)
        key_QK = self._held_QM[:, : self._k]
        count_Q = np.minimum(self._num_held_Q, self._k)
        key = key_QK[np.arange(key_QK.shape[1]) < count_Q[:, None]]
        query = np.repeat(np.arange(len(count_Q)), count_Q)
        return Answers(query, (-key.real).astype(np.float32), key.imag.astype(np.int64))

    def _raise(self, least_P: Floats, score_PN: Floats, rows: Numbers) -> None:
        """Raise what some rows must reach to the K-th best of their scores."""
        own = np.partition(score_PN[rows], -self._k, axis=1)[:, -self._k]
        least_P[rows] = np.maximum(least_P[rows], own)

    def _make_room(self, query_P: Numbers, count_P: Numbers) -> None:
        wanted_P = self._num_held_Q[query_P] + count_P
        full = query_P[wanted_P > 2 * self._k]
        if (most := min(int(wanted_P.max(initial=0)), 2 * self._k)) > self._held_QM.shape[1]:
            more = min(2 * most, 2 * self._k) - self._held_QM.shape[1]
            self._held_QM = np.pad(self._held_QM, ((0, 0), (0, more)), constant_values=_NOTHING)
        if len(full):
            key_PM = np.partition(self._held_QM[full], self._k - 1, axis=1)
            self._least_Q[full] = -key_PM[:, self._k - 1].real
            key_PM[:, self._k :] = _NOTHING
            self._held_QM[full], self._num_held_Q[full] = key_PM, self._k


def _reaching(score_PN: Floats, least_P: Floats) -> tuple[Numbers, Numbers]:
    """Positions of the scores that are not below those of their queries; where each query's begin [P + 1]."""
    num_queries, num_candidates = score_PN.shape
    position = np.flatnonzero(score_PN >= least_P[:, None])
    return position, np.searchsorted(position, np.arange(num_queries + 1) * num_candidates)


class Codes:
    """Distinct numbers that come in pieces.

    Pieces wait until they are as many as the numbers before them: so each number is sorted a few times only.
    """

    def __init__(self) -> None:
        self._merged = np.empty(0, np.int64)
        self._waiting: list[Numbers] = []
        self._num_waiting = 0

    def add(self, piece: Numbers) -> None:
        """Add numbers, of which some may be there already."""
        self._waiting.append(piece)
        self._num_waiting += len(piece)
        if self._num_waiting > len(self._merged):
            self.merged()

    def exceed(self, most: int) -> bool:
        """Tell whether there are more than `most`."""
        return len(self._merged) + self._num_waiting > most and len(self.merged()) > most

    def merged(self) -> Numbers:
        """All of them, ascending."""
        if self._waiting:
            self._set(distinct(np.concatenate([self._merged, *self._waiting]), overwrite=True))
        return self._merged

    def cut(self, stop: int) -> None:
        """Drop those from `stop` on."""
        self._set(self.merged()[: np.searchsorted(self.merged(), stop)])

    def _set(self, numbers: Numbers) -> None:
        self._merged, self._waiting, self._num_waiting = numbers, [], 0


def _read_codes(parts: Pairs, num_queries: int, start: int, num_rows: int, most: int) -> tuple[Numbers, int]:
    """Read pairs from row `start` on, of as many candidates as hold `most` pairs, at least WIDTH.

    Returns row x number of queries + query, ascending; and the row at which they end.
    """
    codes, stop = Codes(), num_rows
    for query, row in parts:
        mine = (row >= start) & (row < stop)
        if not mine.any():
            continue
        codes.add(row[mine] * num_queries + query[mine])
        while codes.exceed(most) and stop - start > WIDTH:
            stop = start + max(1, (stop - start) // 2 // WIDTH) * WIDTH
            codes.cut(stop * num_queries)
    return codes.merged(), stop


def pairs_within(codes: Numbers, num_queries: int, start: int, stop: int) -> tuple[Numbers, Numbers]:
    """Queries, which ascend, and candidates start..stop of ascending numbers candidate x queries + query."""
    first, last = np.searchsorted(codes, [start * num_queries, stop * num_queries])
    candidate_L, query_L = np.divmod(codes[first:last], num_queries)
    order = np.argsort(query_L, kind="stable")
    return query_L[order], candidate_L[order]


class CandidateBlock(NamedTuple):
    """Candidates that follow each other, as scores take them, padded with zeros to whole tiles.

    Attributes:
        first: number of the first candidate.
        num_rows: candidates; the rows of `vectors_ND` behind them are padding.
        query_L, row_L: queries, which ascend, and rows that are no answers to them.
    """

    first: int
    vectors_ND: Floats
    num_rows: int
    query_L: Numbers
    row_L: Numbers


@dataclass(frozen=True, eq=False)
class Scan:
    """Queries of one side, compared with all candidates.

    Attributes:
        relation: makes the candidates, and compares.
        query_QD: queries as scores take them, padded as `made` does.
        left_out: reads the pairs of a partition that are no answers, some of them twice; None: no pairs.
        candidate_rows: candidates that are read at a time, a multiple of WIDTH.
        known_edges: pairs that are held at a time.
    """

    relation: Relation
    side: Side
    query_QD: Floats
    num_queries: int
    candidates: EntityTable
    left_out: Callable[[int], Pairs] | None
    candidate_rows: int
    known_edges: int

    def best(self, k: int, num_gpus: int) -> tuple[Answers, int]:
        """The `k` best candidates of each query, and the number of pairs that are left out.

        Raises ConfigError if a GPU is asked for and there is none.
        """
        sink = _BestOnGpu(self, k, num_gpus) if num_gpus else _BestOnCpu(self, k)
        num_left_out = 0
        for partition in range(len(self.candidates.parts)):
            for block in self._blocks(partition):
                progress.stop_if_cancelled()
                sink.add(block)
                num_left_out += len(block.query_L)
        return sink.result(), num_left_out

    def _blocks(self, partition: int) -> Iterator[CandidateBlock]:
        table = self.candidates
        where = f"{table.trained.checkpoint_path}: {table.entity_type!r}, partition {partition}"
        make = partial(self.relation.candidates, self.side)
        num_queries, num_rows = max(self.num_queries, 1), table.parts[partition].num_rows
        codes, end = np.empty(0, np.int64), 0
        for first, vectors_ND in table.blocks(partition, self.candidate_rows):
            made_ND = made(make, vectors_ND, WIDTH, where)
            start, last = first, first + len(vectors_ND)
            while start < last:
                if start >= end:
                    parts = iter(()) if self.left_out is None else self.left_out(partition)
                    codes, end = _read_codes(parts, num_queries, start, num_rows, self.known_edges)
                stop = min(last, end)
                query_L, row_L = pairs_within(codes, num_queries, start, stop)
                padded_ND = made_ND[start - first : start - first + -(-(stop - start) // WIDTH) * WIDTH]
                number = int(table.first[partition]) + start
                yield CandidateBlock(number, padded_ND, stop - start, query_L, row_L - start)
                start = stop


class _BestOnCpu:
    """Scores every tile of queries against every tile of candidates."""

    def __init__(self, scan: Scan, k: int) -> None:
        self._scan, self._top = scan, TopK(scan.num_queries, k)

    def add(self, block: CandidateBlock) -> None:
        """Take candidates."""
        scan, num_queries = self._scan, self._scan.num_queries
        num_tiles = len(scan.query_QD) // HEIGHT
        cell_L = block.row_L // WIDTH * num_tiles + block.query_L // HEIGHT
        order = np.argsort(cell_L, kind="stable")
        query_L, row_L = block.query_L[order], block.row_L[order]
        bounds = np.searchsorted(cell_L[order], np.arange(len(block.vectors_ND) // WIDTH * num_tiles + 1))
        for cell in range(len(bounds) - 1):
            first, start = cell // num_tiles * WIDTH, cell % num_tiles * HEIGHT
            query_P = np.arange(start, min(start + HEIGHT, num_queries))
            candidate_N = np.arange(first, min(first + WIDTH, block.num_rows))
            score_PN = scan.relation.matrix_scores(
                scan.side, scan.query_QD[start : start + HEIGHT], block.vectors_ND[first : first + WIDTH]
            )[: len(query_P), : len(candidate_N)]
            own = slice(bounds[cell], bounds[cell + 1])
            score_PN[query_L[own] - start, row_L[own] - first] = -np.inf
            self._top.add(query_P, score_PN, candidate_N + block.first)

    def result(self) -> Answers:
        """All answers."""
        return self._top.result()


class _BestOnGpu:
    """Scores on a GPU, where scores are dot products; see `graphmill.gpu.best`."""

    def __init__(self, scan: Scan, k: int, num_gpus: int) -> None:
        import torch

        from graphmill.gpu import best, device

        self._device, self._tensor = device.device_of(num_gpus), torch.from_numpy
        query_QD = self._tensor(scan.query_QD[: scan.num_queries]).to(self._device)
        self._best = best.BestOnDevice(query_QD, k)

    def add(self, block: CandidateBlock) -> None:
        """Take candidates."""
        arrays = block.vectors_ND[: block.num_rows], block.query_L, block.row_L
        table_ND, query_L, row_L = (self._tensor(array).to(self._device) for array in arrays)
        self._best.add(table_ND, block.first, query_L, row_L)

    def result(self) -> Answers:
        """All answers."""
        score_QK, row_QK = self._best.score_QK.cpu().numpy(), self._best.row_QK.cpu().numpy()
        query, place = np.nonzero(score_QK > -np.inf)
        return Answers(query, score_QK[query, place], row_QK[query, place])


def made(make: Callable[[Floats], Floats], vectors_ND: Floats, size: int, where: str) -> Floats:
    """Make queries or candidates of vectors in tiles of one size, [N, D], padded with zeros to whole ones."""
    made_ND = np.zeros((-(-len(vectors_ND) // size) * size, vectors_ND.shape[1]), np.float32)
    made_ND[: len(vectors_ND)] = vectors_ND
    for start in range(0, len(made_ND), size):
        tile_ND = made_ND[start : start + size]
        num_rows = min(size, len(vectors_ND) - start)
        check_magnitude(tile_ND[:num_rows], where)
        tile_ND[...] = make(tile_ND)
        check_magnitude(tile_ND[:num_rows], where)
    return made_ND
