"""Exact ranking of edges against all entities of a type.

`prepare` makes the queries of one side and scores its edges; `Counting` counts, for a range of queries and
the candidates of one partition, those that score higher or the same (see `comparison`). Counts of partitions
add up to ranks, so partitions and ranges of queries can be counted anywhere and in any order. Scores are
never kept. Known edges are left out by the numbers of their cells. Threads work on different blocks.

Shapes: D dimension (the largest of all types; a narrower type uses the first columns), E edges,
Q queries, N candidates of a block, T pairs of an edge and a candidate, K cells.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.edges import Numbers
from graphmill.ask.evaluate.comparison import ComparedEdges, ComparedFactors
from graphmill.ask.evaluate.queries import Group, Queries, chunks
from graphmill.ask.evaluate.ranker import Ranker, Report
from graphmill.ask.scan import pairs_within
from graphmill.gpu.device import copied
from graphmill.sorted_arrays import distinct, positions, ranges
from graphmill.vocab import Partition

BLOCKS_PER_TASK = 4


class _Block(NamedTuple):
    """A block of queries, and their edges, both within the range that is counted."""

    queries: slice
    edges: slice

    @property
    def num_queries(self) -> int:
        """Queries of the block."""
        return int(self.queries.stop) - int(self.queries.start)


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
        self,
        ranker: Ranker,
        queries: Queries,
        rows: slice,
        vectors_QD: Tensor,
        own_E: Tensor,
        known: Numbers,
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
            for blocks in self._spans(group)
        )
        self.ranker.run(tasks, report)

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

    def _spans(self, group: Group) -> Iterator[list[_Block]]:
        """Runs of blocks that compute their candidates once, short enough to keep all threads busy."""
        blocks = list(self._blocks(group))
        for chunk in chunks(slice(0, len(blocks)), BLOCKS_PER_TASK):
            yield blocks[chunk]

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
        return sum(block.num_queries for block in blocks) * len(tile.number_N)

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
