"""The best candidates of some queries among the lists nearest to each query.

The lists come once, and meet the queries that are nearest to them. One matrix product scores a list for all
its queries.

Shapes: U queries, L lists, P queries and N candidates of a tile, D dimension, M known edges.
"""

from dataclasses import replace

import numpy as np

from graphmill.ask.predict.lists import Lists, Numbers
from graphmill.ask.predict.search import Asked
from graphmill.ask.scan import Answers, Codes, TopK, pairs_within
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.sorted_arrays import positions

MOST_QUERIES, MOST_CANDIDATES = 512, 4096  # of a product
MOST_SCORES = MOST_QUERIES * MOST_CANDIDATES
_PROBE_BYTES = 32
WINDOW_BYTES = 32 << 20  # memory of this size is used again; more is asked of the system each time


def search_lists(asked: Asked, lists: Lists, number_U: Numbers) -> tuple[Answers, int]:
    """Return the answers of entities, whose numbers [U] ascend, and the number of known edges left out.

    Queries with more known edges than fit in memory are answered in parts; a single one is answered exactly.
    """
    list_bytes = asked.sizes.candidate_rows * 4 * asked.candidates.dimension
    known = None
    if len(number_U) <= max(1, list_bytes // (_PROBE_BYTES * lists.num_probed)):
        known = _known_cells(asked, lists, number_U)
    if known is not None:
        return _ListSearch(asked, lists, number_U, known).answers(), len(known)
    if len(number_U) == 1:
        return replace(asked, num_gpus=0).search_all(number_U)
    middle = len(number_U) // 2
    first, num_known = search_lists(asked, lists, number_U[:middle])
    second, more = search_lists(asked, lists, number_U[middle:])
    query = np.concatenate([first.query, second.query + middle])
    score = np.concatenate([first.score, second.score])
    return Answers(query, score, np.concatenate([first.candidate, second.candidate])), num_known + more


def _known_cells(asked: Asked, lists: Lists, number_U: Numbers) -> Numbers | None:
    """Known edges, candidate's place x queries + query, ascending; None if they do not fit in memory."""
    cells, num_queries = Codes(), max(len(number_U), 1)
    for partition in range(len(asked.candidates.parts)):
        first = asked.candidates.first[partition]
        for query, row in asked.left_out.read(asked.queries, number_U, asked.candidates, partition):
            cells.add((row + first) * num_queries + query)
            if cells.exceed(asked.sizes.known_edges):
                return None
    number, query = np.divmod(cells.merged(), num_queries)
    return np.sort(lists.places(number) * num_queries + query)


class _ListSearch:
    """The best candidates of queries that fit in memory together with their known edges."""

    def __init__(self, asked: Asked, lists: Lists, number_U: Numbers, known: Numbers) -> None:
        self._asked, self._lists, self._known = asked, lists, known
        self._query_UD = asked.made_queries(number_U)[: len(number_U)]
        self._best = TopK(len(number_U), asked.num_best)
        small = WINDOW_BYTES // (4 * asked.candidates.dimension)
        self._window_rows = max(1, min(small, asked.sizes.candidate_rows))

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""
        lists, first_L1 = self._lists, self._lists.first()
        bounds_L1, query = by_list(nearest_lists(self._asked, lists, self._query_UD), lists.num_lists)
        for part, start_list in enumerate(lists.part_first[:-1]):
            stop_list = lists.part_first[part + 1]
            if bounds_L1[start_list] == bounds_L1[stop_list]:
                continue
            base = int(first_L1[start_list])
            for row, vectors_ND, numbers in lists.windows(part, self._window_rows):
                progress.stop_if_cancelled()
                start, stop = base + row, base + row + len(numbers)
                for number in range(start_list, stop_list):
                    low, high = max(start, int(first_L1[number])), min(stop, int(first_L1[number + 1]))
                    queries = query[bounds_L1[number] : bounds_L1[number + 1]]
                    if low < high and len(queries):
                        here = slice(low - start, high - start)
                        self._compare(queries, vectors_ND[here], numbers[here], low)
        return self._best.result()

    def _compare(self, query_P: Numbers, vectors_ND: Floats, numbers: Numbers, place: int) -> None:
        """Compare queries with candidates of a list, the first of which has this place."""
        relation, side = self._asked.relation, self._asked.side
        for first in range(0, len(query_P), MOST_QUERIES):
            queries = query_P[first : first + MOST_QUERIES]
            query_PD = self._query_UD[queries]
            for start in range(0, len(numbers), MOST_CANDIDATES):
                tile_ND = vectors_ND[start : start + MOST_CANDIDATES]
                score_PN = relation.matrix_scores(side, query_PD, tile_ND)
                first_place = place + start
                known = pairs_within(
                    self._known, len(self._query_UD), first_place, first_place + len(tile_ND)
                )
                row = positions(queries, known[0])
                score_PN[row[row >= 0], known[1][row >= 0] - first_place] = -np.inf
                self._best.add(queries, score_PN, numbers[start : start + MOST_CANDIDATES])


def nearest_lists(asked: Asked, lists: Lists, query_UD: Floats) -> Numbers:
    """The lists [U, probed] whose centers score best for each query."""
    centers_LD, probed = lists.centers(), min(lists.num_probed, lists.num_lists)
    list_UP = np.empty((len(query_UD), probed), np.int64)
    step = max(1, min(MOST_QUERIES, MOST_SCORES // lists.num_lists))
    for start in range(0, len(query_UD), step):
        score_PL = asked.relation.matrix_scores(asked.side, query_UD[start : start + step], centers_LD)
        best = TopK(len(score_PL), probed)
        best.add(np.arange(len(score_PL)), score_PL, np.arange(len(centers_LD)))
        list_UP[start : start + step] = best.result().candidate.reshape(-1, probed)
    return list_UP


def by_list(list_UP: Numbers, num_lists: int) -> tuple[Numbers, Numbers]:
    """Queries by list: where each list's queries begin [L + 1], and queries, ascending in each list."""
    order = np.argsort(list_UP.ravel(), kind="stable")
    bounds_L1 = np.searchsorted(list_UP.ravel()[order], np.arange(num_lists + 1))
    return bounds_L1, order // max(list_UP.shape[1], 1)
