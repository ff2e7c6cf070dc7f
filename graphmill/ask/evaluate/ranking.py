"""Exact ranking of edges against all entities of a type.

`prepare` makes the queries of one side and scores its edges; `Counting` counts, for a range of queries and
the candidates of one partition, those that score higher or the same (see `comparison`). Counts of partitions
add up to ranks, so partitions and ranges of queries can be counted anywhere and in any order. Scores are
never kept. Known edges are left out by the numbers of their cells. Threads work on different blocks.
Operators transform candidates in blocks of one shape, so that a linear operator rounds copies alike.

Shapes: D dimension (the largest of all types; a narrower type uses the first columns), E edges, Q queries,
P queries, N candidates and C edges of a block, T pairs of an edge and a candidate, K cells.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.edges import Graph, Numbers
from graphmill.ask.evaluate.comparison import ComparedEdges, ComparedFactors, Comparison
from graphmill.ask.evaluate.queries import Group, Queries, chunks
from graphmill.ask.model import Model
from graphmill.ask.scan import pairs_within
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.gpu.device import copied, kernels_of
from graphmill.machine.threads import Threads
from graphmill.model import comparators
from graphmill.model.operators import operator_of
from graphmill.sorted_arrays import distinct, positions, ranges
from graphmill.vocab import Partition, Side

FUSED_THREADS = 4
MATRIX_BYTES = 256 << 20
Report = Callable[[int], None]  # called with the number of scores so far
Take = Callable[[str, Partition, Numbers], Tensor]  # gives rows of the embeddings of a partition, [n, D]
BLOCKS_PER_TASK = 4  # which compute their candidates once; few enough to keep all threads busy


def can_rank(config: Config, device: torch.device) -> bool:
    """Tell whether the kernels can count ranks: on a GPU, where scores are dot products."""
    return device.type == "cuda" and comparators.is_dot(config.comparator, config.bias)


def gather(graph: Graph, take: Take, side: Side, rel: Numbers, ids: Numbers) -> Tensor:
    """Embeddings of entities, by number [E], on one side of the relations `rel` [E]: [E, D]."""
    dimension = max(graph.config.entity_dimension(name) for name in graph.counts)
    gathered_ED = torch.zeros(len(ids), dimension)
    for entity_type, partition, places, index in graph.visits(side, rel, ids):
        rows_ND = take(entity_type, partition, index)
        gathered_ED[torch.from_numpy(places), : rows_ND.shape[1]] = rows_ND
    return gathered_ED


class Ranker:
    """Means to rank: the model, on one device, with threads and perhaps the kernels of graphmill/gpu."""

    def __init__(self, model: Model, device: torch.device, *, num_threads: int, fused: bool) -> None:
        """`fused` counts with the kernels, which keep no scores; threads then only keep the device busy."""
        self.model, self.device = model, device
        self.num_threads = min(num_threads, FUSED_THREADS) if fused else num_threads
        self.lock = threading.Lock()
        self.comparison = Comparison(model, device)
        self.kernels = kernels_of(device) if fused else None

    def candidates(self, queries: Queries, group: Group, embeddings: Tensor) -> Tensor:
        """Candidates of one block, padded with zeros to the width of a block: [<= N, D] -> [N, D].

        Candidates are columns in memory, so the product of a linear operator rounds all of them alike.
        """
        dimension, width = self.model.config.entity_dimension(group.entity_type), queries.width
        padded_DN = torch.zeros(dimension, width, device=self.device)
        padded_DN[:, : len(embeddings)] = embeddings[:, :dimension].T
        return self.model.candidates(group.relation, queries.side, padded_DN.T)


def prepare(ranker: Ranker, queries: Queries, take: Take) -> tuple[Tensor, Tensor]:
    """Queries [Q, D], and the scores of the edges themselves [E] float64, in the order of the queries."""
    graph, side = queries.graph, queries.side
    vectors_QD = gather(graph, take, side.other, queries.rel, queries.ends)
    _make_queries(ranker, queries, vectors_QD)
    own_ED = gather(graph, take, side, queries.rel[queries.of_edge], queries.candidates)
    return vectors_QD, _own_scores(ranker, queries, vectors_QD, own_ED)


def _make_queries(ranker: Ranker, queries: Queries, vectors_QD: Tensor) -> None:
    """Turn the embeddings into queries, in place, by blocks; a block has one relation if static."""
    config, side = ranker.model.config, queries.side
    for group in queries.groups:
        dimension, step = config.entity_dimension(group.entity_type), queries.height
        if config.dynamic_relations and operator_of(config.relations[0].operator).has_matrices:
            # each query may need a matrix
            num_floats = min(step * queries.width, MATRIX_BYTES // 4)
            step = max(1, num_floats // dimension**2)
        rel = queries.rel[group.start : group.stop]
        changes = [] if config.dynamic_relations else (np.flatnonzero(np.diff(rel)) + 1).tolist()
        runs = [group.start + change for change in (0, *changes, len(rel))]
        for first, last in itertools.pairwise(runs):
            for rows in chunks(slice(first, last), step):
                rel_P = torch.from_numpy(queries.rel[rows]).to(ranker.device)
                vectors_PD = vectors_QD[rows, :dimension].to(ranker.device)
                relation = 0 if config.dynamic_relations else int(rel_P[0])
                dynamic_P = rel_P if config.dynamic_relations else None
                vectors_QD[rows, :dimension] = ranker.model.query(relation, side, vectors_PD, dynamic_P).cpu()


def _own_scores(ranker: Ranker, queries: Queries, vectors_QD: Tensor, own_ED: Tensor) -> Tensor:
    """Scores of the edges themselves: [E]."""
    score_E = torch.empty(len(own_ED), dtype=torch.float64)
    for group in queries.groups:
        dimension = ranker.model.config.entity_dimension(group.entity_type)
        first, last = np.searchsorted(queries.of_edge, [group.start, group.stop]).tolist()
        for edges in chunks(slice(first, last), min(queries.width, queries.height)):
            candidate_ND = ranker.candidates(queries, group, own_ED[edges].to(ranker.device))
            query_CD = vectors_QD[queries.of_edge[edges], :dimension].to(ranker.device)
            if ranker.kernels is not None:
                number_C = torch.arange(len(query_CD), device=ranker.device)
                pair = query_CD.contiguous(), candidate_ND.contiguous()
                score_C = ranker.kernels.pair_scores(*pair, number_C, number_C)
            else:
                score_C = ranker.comparison.own_scores(query_CD, candidate_ND, queries.side)
            score_E[edges] = score_C.double().cpu()
    if not bool((score_E.abs() <= torch.finfo(torch.float32).max).all()):
        raise FormatError(
            "an edge's score is not a finite number: the checkpoint's embeddings or parameters are "
            "not finite, or too large for float32"
        )
    return score_E


class _Block(NamedTuple):
    """A block of queries, and their edges, both within the range that is counted."""

    queries: slice
    edges: slice


class _Tile(NamedTuple):
    """Neighbouring candidates, and known cells of them: queries of the range, which ascend, and columns."""

    vectors_ND: Tensor
    number_N: Numbers
    query_K: Numbers
    column_K: Numbers

    def known_of(self, block: _Block) -> tuple[Numbers, Numbers]:
        """Rows and columns of known cells of a block."""
        own = slice(*np.searchsorted(self.query_K, [block.queries.start, block.queries.stop]))
        return self.query_K[own] - block.queries.start, self.column_K[own]


class Counting:
    """Counts for a range of one side's queries, which ends where blocks of queries end.

    Attributes:
        edges: the edges of the range, in the order of the queries.
    """

    def __init__(
        self, ranker: Ranker, queries: Queries, rows: slice, vectors_QD: Tensor, own_E: Tensor, known: Numbers
    ) -> None:
        """`vectors_QD` and `own_E` are those of the range; `known` has cells that do not count, sorted."""
        self.ranker, self.queries, self.rows, self.known = ranker, queries, rows, known
        first, last = np.searchsorted(queries.of_edge, [rows.start, rows.stop]).tolist()
        self.edges = slice(first, last)
        self._vectors_QD, self._own_E = vectors_QD, own_E.to(ranker.device)
        self._query = queries.of_edge[self.edges] - rows.start
        self._query_E = torch.from_numpy(self._query).to(ranker.device)
        self._candidates = queries.candidates[self.edges]
        self._counts = torch.zeros(2, last - first, dtype=torch.int64, device=ranker.device)
        self._factors: dict[int, ComparedFactors] = {}
        self._query_ED: dict[int, Tensor] = {}

    def counts(self) -> Numbers:
        """Numbers of other candidates that score higher, and of those that score the same: [2, E]."""
        return self._counts.cpu().numpy()

    def add(self, entity_type: str, partition: Partition, table_ND: Tensor, report: Report) -> None:
        """Count the candidates of a partition; `report` gets the number of scores so far."""
        first = int(self.queries.graph.first[entity_type][partition])
        cuts = chunks(slice(0, len(table_ND)), self.queries.width)
        tasks = (
            partial(self._count_span, group, blocks, tile)
            for tile in (self._tile(table_ND[rows], first + rows.start) for rows in cuts)
            for group in self._groups(entity_type)
            for whole in [list(self._blocks(group))]
            for blocks in (whole[some] for some in chunks(slice(0, len(whole)), BLOCKS_PER_TASK))
        )
        Threads(self.ranker.num_threads, report).run(tasks)

    def _tile(self, vectors_ND: Tensor, start: int) -> _Tile:
        stop = start + len(vectors_ND)
        query_K, number_K = pairs_within(self.known, len(self.queries), start, stop)
        return _Tile(vectors_ND, np.arange(start, stop), query_K - self.rows.start, number_K - start)

    def _groups(self, entity_type: str) -> list[Group]:
        """The groups with candidates of a type, as far as they are in the range."""
        return [
            group
            for group in self.queries.groups
            if group.entity_type == entity_type
            and group.start < self.rows.stop
            and self.rows.start < group.stop
        ]

    def _blocks(self, group: Group) -> Iterator[_Block]:
        for rows in chunks(slice(group.start, group.stop), self.queries.height):
            if self.rows.start <= rows.start < self.rows.stop:
                edges = np.searchsorted(self.queries.of_edge, [rows.start, rows.stop]) - self.edges.start
                own = slice(rows.start - self.rows.start, rows.stop - self.rows.start)
                yield _Block(own, slice(*edges.tolist()))

    def _count_span(self, group: Group, blocks: Sequence[_Block], tile: _Tile) -> int:
        """Count for some blocks of queries against one block of candidates; the number of scores."""
        ranker = self.ranker
        candidate_ND = ranker.candidates(self.queries, group, copied(tile.vectors_ND, ranker.device))
        if ranker.kernels is not None:
            table_ND = candidate_ND[: len(tile.number_N)].contiguous()
            for block in blocks:
                self._count_fused(ranker.kernels, group, block, table_ND, tile)
        else:
            candidates = ranker.comparison.candidates(candidate_ND)
            for block in blocks:
                self._compare(group, block, candidates, tile)
        return sum(int(block.queries.stop - block.queries.start) for block in blocks) * len(tile.number_N)

    def _compare(self, group: Group, block: _Block, candidates: ComparedFactors, tile: _Tile) -> None:
        """Count for a block of queries."""
        device, edges = self.ranker.device, block.edges
        row_K, column_K = (torch.from_numpy(cells).to(device) for cells in tile.known_of(block))
        column_C = torch.from_numpy(positions(tile.number_N, self._candidates[edges])).to(device)
        row_C, left_out = self._query_E[edges] - block.queries.start, (row_K, column_K)
        of_block = ComparedEdges(row_C, self._own_E[edges], column_C, left_out, len(tile.number_N))
        queries = self._factors_of(group, block)
        counts = self.ranker.comparison.count(of_block, queries, candidates, self.queries.side)
        with self.ranker.lock:
            self._counts[:, edges] += counts

    def _factors_of(self, group: Group, block: _Block) -> ComparedFactors:
        """Factors of a block of queries, made once."""
        number = block.queries.start
        if number not in self._factors:  # two threads may make the same
            self._factors[number] = self.ranker.comparison.queries(self._query_rows(group, block))
        return self._factors[number]

    def _query_rows(self, group: Group, block: _Block) -> Tensor:
        dimension = self.ranker.model.config.entity_dimension(group.entity_type)
        return self._vectors_QD[block.queries, :dimension].to(self.ranker.device)

    def _count_fused(
        self, kernels: ModuleType, group: Group, block: _Block, table_ND: Tensor, tile: _Tile
    ) -> None:
        """Count for a block with the kernels, and subtract the candidates that do not count."""
        edges, device = block.edges, self.ranker.device
        number, score_E = block.queries.start, self._own_E[edges].float()
        if number not in self._query_ED:  # two threads may make the same
            row_E = self._query_E[edges] - number
            self._query_ED[number] = self._query_rows(group, block)[row_E].contiguous()
        query_ED = self._query_ED[number]
        counts = torch.stack(kernels.count_above(query_ED, table_ND, score_E))
        edge_T, column_T = (torch.from_numpy(numbers).to(device) for numbers in self._left_out(block, tile))
        score_T = kernels.pair_scores(query_ED, table_ND, edge_T, column_T)
        is_counted = torch.stack([score_T > score_E[edge_T], score_T == score_E[edge_T]])
        counts.index_add_(1, edge_T, is_counted.long(), alpha=-1)
        with self.ranker.lock:
            self._counts[:, edges] += counts

    def _left_out(self, block: _Block, tile: _Tile) -> tuple[Numbers, Numbers]:
        """Pairs of an edge and a column, each once, that are known or the edge's own."""
        row_E = self._query[block.edges] - block.queries.start
        (row_K, column_K), num_columns = tile.known_of(block), len(tile.number_N)
        # edges are sorted by query, so the edges of a known cell's query are a range
        first_K = np.searchsorted(row_E, row_K)
        count_K = np.searchsorted(row_E, row_K, side="right") - first_K
        edge_T = ranges(first_K, count_K)
        own_E = positions(tile.number_N, self._candidates[block.edges])
        own = np.flatnonzero(own_E >= 0) * num_columns + own_E[own_E >= 0]
        pairs = distinct(np.concatenate([edge_T * num_columns + np.repeat(column_K, count_K), own]))
        return np.divmod(pairs, num_columns)
