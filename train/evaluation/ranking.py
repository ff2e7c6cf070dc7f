"""Exact ranking of edges against all entities of a type, by matrix products of bounded size.

A tie and a near miss must differ to the last bit, and a matrix product may round differently at its edges.
So all products have the same number of candidates (the last block is padded), and the score of an edge
itself comes out of such a product too. Scores are never kept, only the counts of greater and of equal ones.
Known edges are masked in each block of scores by the numbers of their cells. Threads work on different
blocks, and each product runs on one thread, so the ranks do not depend on the number of threads.

Shapes: D dimension (the largest of all types; a narrower type uses the first columns), E edges,
Q queries, P queries of a block, N candidates of a block, C edges of a block, K cells.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphmill.errors import FormatError
from graphmill.vocab import Partition, Side
from train.evaluation.metrics import Ranks
from train.evaluation.queries import Group, Numbers, Queries, Slots, Triples
from train.model.model import Model
from train.step.runtime import cpu_threads
from train.step.threads import Threads

BLOCKS_PER_TASK = 4
_WITHOUT_MATRICES = ("none", "diagonal", "translation", "complex_diagonal", "rotation")
Load = Callable[[str, Partition], Tensor]  # gives the embeddings of a partition, [count, D]
Report = Callable[[int, int], None]  # called with the scores counted so far, and all that there are


def block_sizes(block_bytes: int, counts: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a block of scores of at most `block_bytes`; the width is a multiple of 64."""
    largest = max(counts)
    cells = block_bytes // 4
    width = min(max(64, int(cells**0.5) // 64 * 64), -(-max(largest, 1) // 64) * 64)
    return max(1, cells // width), width


def rank(
    model: Model,
    slots: Slots,
    load: Load,
    edges: Triples,
    known: Iterable[Triples],
    *,
    height: int,
    num_threads: int = 1,
    device: torch.device | str = "cpu",
    fused: bool = False,
    report: Report = lambda done, total: None,
) -> dict[Side, Ranks]:
    """Rank each side of every edge among all entities of the side's type; `known` edges do not count.

    The known edges come in parts that fit in memory, and are read once.
    Memory: the edges' queries and own candidates, 8 D bytes per edge; one partition; two blocks of scores per
    thread. Torch's own number of threads is 1 meanwhile. `fused` counts with the kernels of train/gpu, which
    keep no scores.

    Raises:
        FormatError: an edge's score is not finite.
    """
    by_side = {side: Queries(slots, side, edges, height) for side in Side}
    cells: dict[Side, list[Numbers]] = {side: [np.empty(0, np.int64)] for side in Side}
    for part in known:
        for side, queries in by_side.items():
            cells[side].append(queries.shared_cells(part))
    total = sum(queries.num_scores() for queries in by_side.values())
    threads = Threads(num_threads, lambda done: report(done, total))
    kernels = import_module("train.gpu.kernels") if fused else None  # needs Triton
    ranks = {}
    with cpu_threads(1):
        for side, queries in by_side.items():
            known_cells = np.unique(np.concatenate(cells.pop(side)))
            ranking = _SideRanking(model, queries, known_cells, load, torch.device(device), threads, kernels)
            ranks[side] = ranking.run()
    return ranks


def gather(slots: Slots, load: Load, side: Side, rel: Numbers, ids: Numbers) -> Tensor:
    """Embeddings of the entities with the slots `ids` [E], on one side of the relations `rel` [E]: [E, D]."""
    dimension = max(slots.config.entity_dimension(each) for each in slots.counts)
    gathered_ED = torch.zeros(len(ids), dimension)
    for entity_type, partition, positions, index in slots.visits(side, rel, ids):
        table = load(entity_type, partition)
        gathered_ED[torch.from_numpy(positions), : table.shape[1]] = table[torch.from_numpy(index)]
    return gathered_ED


class _Block(NamedTuple):
    """A block of queries: its number, its queries, their edges."""

    number: int
    queries: slice
    edges: slice


class _SideRanking:
    """The ranking of one side: gathers vectors, scores the edges themselves, counts better candidates."""

    def __init__(
        self,
        model: Model,
        queries: Queries,
        known: Numbers,
        load: Load,
        device: torch.device,
        threads: Threads,
        kernels: ModuleType | None,
    ) -> None:
        self.model, self.queries, self.known, self.load = model, queries, known, load
        self.device, self.threads, self.kernels = device, threads, kernels
        self.slots, self.side = queries.slots_of_types, queries.side
        own = queries.cells(queries.of_edge, queries.candidates)
        by_cell = np.argsort(own, kind="stable")
        self.own = own[by_cell]
        self.edge_of_own = torch.from_numpy(by_cell).to(device)
        position = np.minimum(np.searchsorted(known, own), max(len(known) - 1, 0))
        self.own_is_known = known[position] == own if len(known) else np.zeros(len(own), bool)
        self.row_E = torch.from_numpy(queries.row[queries.of_edge]).to(device)

    def run(self) -> Ranks:
        """The ranks, in the order of the edges."""
        rel_E = self.queries.rel[self.queries.of_edge]
        vectors_QD = gather(self.slots, self.load, self.side.other, self.queries.rel, self.queries.slots)
        self._make_queries(vectors_QD)
        own_ED = gather(self.slots, self.load, self.side, rel_E, self.queries.candidates)
        self.score_E = self._own_scores(vectors_QD, own_ED)
        del own_ED
        self.greater_E = torch.zeros(len(rel_E), dtype=torch.int64, device=self.device)
        self.at_least_E = torch.zeros_like(self.greater_E)
        self._count(vectors_QD)
        equal_E = (self.at_least_E - self.greater_E).cpu().numpy() - ~self.own_is_known  # no rival of itself
        position_E = np.argsort(self.queries.order)
        return Ranks(self.greater_E.cpu().numpy()[position_E], equal_E[position_E])

    def _dimension(self, group: Group) -> int:
        return self.model.config.entity_dimension(group.entity_type)

    def _make_queries(self, vectors_QD: Tensor) -> None:
        """Turn the embeddings into queries, in place, by blocks; a block has one relation if static."""
        config = self.model.config
        for group in self.queries.groups:
            dimension, step = self._dimension(group), self.queries.height
            if config.dynamic_relations and config.relations[0].operator not in _WITHOUT_MATRICES:
                step = max(1, step * self.slots.width // dimension**2)  # each query may need a matrix
            rel = self.queries.rel[group.start : group.stop]
            changes = [] if config.dynamic_relations else (np.flatnonzero(np.diff(rel)) + 1).tolist()
            runs = [group.start + each for each in (0, *changes, len(rel))]
            for first, last in itertools.pairwise(runs):
                for start in range(first, last, step):
                    rows = slice(start, min(start + step, last))
                    rel_P = torch.from_numpy(self.queries.rel[rows]).to(self.device)
                    vectors_PD = vectors_QD[rows, :dimension].to(self.device)
                    relation = 0 if config.dynamic_relations else int(rel_P[0])
                    dynamic_P = rel_P if config.dynamic_relations else None
                    query_PD = self.model.query(relation, self.side, vectors_PD, dynamic_P)
                    vectors_QD[rows, :dimension] = query_PD.cpu()

    def _blocks(self, group: Group) -> Iterator[_Block]:
        whole = slice(group.start, group.stop)
        for number, queries in enumerate(_chunks(whole, self.queries.height), group.first_block):
            edges = np.searchsorted(self.queries.of_edge, [queries.start, queries.stop]).tolist()
            yield _Block(number, queries, slice(*edges))

    def _spans(self, group: Group) -> Iterator[list[_Block]]:
        """Runs of blocks that compute their candidates once, short enough to keep all threads busy."""
        blocks = list(self._blocks(group))
        for chunk in _chunks(slice(0, len(blocks)), BLOCKS_PER_TASK):
            yield blocks[chunk]

    def _candidates(self, group: Group, embeddings: Tensor) -> Tensor:
        """Candidates of one block, padded with zeros to the width: [<= N, D] -> [N, D].

        Candidates are columns in memory, so the product of a linear operator rounds all of them alike.
        """
        padded_DN = torch.zeros(self._dimension(group), self.slots.width, device=self.device)
        padded_DN[:, : len(embeddings)] = embeddings[:, : self._dimension(group)].T
        return self.model.candidates(group.relation, self.side, padded_DN.T)

    def _own_scores(self, vectors_QD: Tensor, own_ED: Tensor) -> Tensor:
        """Scores of the edges themselves: [E], from products of the same shape as the other candidates'."""
        score_E = torch.empty(len(own_ED), device=self.device)

        def score(group: Group, block: _Block) -> int:
            query_PD = vectors_QD[block.queries, : self._dimension(group)].to(self.device)
            for chunk in _chunks(block.edges, self.slots.width):
                candidate_ND = self._candidates(group, own_ED[chunk])
                row_C = self.row_E[chunk]
                column_C = torch.arange(len(row_C), device=self.device)
                if self.kernels is not None:
                    pair = query_PD.contiguous(), candidate_ND.contiguous()
                    score_E[chunk] = self.kernels.pair_scores(*pair, row_C, column_C)
                else:
                    score_E[chunk] = self.model.matrix_scores(query_PD, candidate_ND, self.side)[
                        row_C, column_C
                    ]
            return 0

        self.threads.run(
            partial(score, group, block) for group in self.queries.groups for block in self._blocks(group)
        )
        if not bool(torch.isfinite(score_E).all()):
            raise FormatError(
                "an edge's score is not a finite number: the checkpoint's embeddings or parameters are "
                "not finite, or too large for float32"
            )
        return score_E

    def _count(self, vectors_QD: Tensor) -> None:
        """Compare every edge's score with those of all candidates."""
        for entity_type in dict.fromkeys(group.entity_type for group in self.queries.groups):
            groups = [group for group in self.queries.groups if group.entity_type == entity_type]
            for partition, first_slot in enumerate(self.slots.first[entity_type][:-1].tolist()):
                table = self.load(entity_type, partition)
                if not len(table):  # torch.split would make one block of it
                    continue
                self.threads.run(
                    partial(self._count_blocks, group, blocks, rows_ND, number, vectors_QD)
                    for number, rows_ND in enumerate(
                        torch.split(table, self.slots.width), first_slot // self.slots.width
                    )
                    for group in groups
                    for blocks in self._spans(group)
                )

    def _count_blocks(
        self, group: Group, blocks: Sequence[_Block], rows_ND: Tensor, number: int, vectors_QD: Tensor
    ) -> int:
        """Count for some blocks of queries against one block of candidates; the number of scores."""
        num_queries: int = blocks[-1].queries.stop - blocks[0].queries.start
        candidate_ND = self._candidates(group, rows_ND)
        if self.kernels is not None:
            candidate_ND = candidate_ND[: len(rows_ND)].contiguous()
        else:
            rival_PN = torch.empty(self.queries.height, self.slots.width, device=self.device)
        for block in blocks:
            query_PD = vectors_QD[block.queries, : self._dimension(group)].to(self.device)
            if self.kernels is not None:
                self._count_fused(self.kernels, block, query_PD, candidate_ND, number)
                continue
            score_PN = self.model.matrix_scores(query_PD, candidate_ND, self.side)
            score_PN[:, len(rows_ND) :] = -torch.inf
            flat = score_PN.view(-1)
            which, position = self.queries.within(self.own, block.number, number)
            flat[torch.from_numpy(position).to(self.device)] = self.score_E[self.edge_of_own[which]]
            _, position = self.queries.within(self.known, block.number, number)
            flat[torch.from_numpy(position).to(self.device)] = -torch.inf
            for chunk in _chunks(block.edges, self.queries.height):
                self._count_chunk(score_PN, rival_PN[: chunk.stop - chunk.start], chunk)
        return num_queries * self.slots.width

    def _count_fused(
        self, kernels: ModuleType, block: _Block, query_PD: Tensor, table_ND: Tensor, number: int
    ) -> None:
        """Count for a block with the kernels, and subtract the known edges of its queries."""
        row_E, score_E = self.row_E[block.edges], self.score_E[block.edges]
        query_ED = query_PD[row_E].contiguous()
        greater_E, equal_E = kernels.count_above(query_ED, table_ND, score_E)
        _, position = self.queries.within(self.known, block.number, number)
        cell = torch.from_numpy(position).to(self.device)
        query_K, column_K = cell // self.slots.width, cell % self.slots.width
        # edges are sorted by query, so the edges of a known cell's query are a range
        first_K = torch.searchsorted(row_E, query_K)
        count_K = torch.searchsorted(row_E, query_K, right=True) - first_K
        column_T = column_K.repeat_interleave(count_K)
        before_K = (count_K.cumsum(0) - count_K).repeat_interleave(count_K)
        edge_T = torch.arange(len(column_T), device=self.device) - before_K
        edge_T += first_K.repeat_interleave(count_K)
        score_T = kernels.pair_scores(query_ED, table_ND, edge_T, column_T)
        greater_E.index_add_(0, edge_T, (score_T > score_E[edge_T]).long(), alpha=-1)
        equal_E.index_add_(0, edge_T, (score_T == score_E[edge_T]).long(), alpha=-1)
        with self.threads.lock:
            self.greater_E[block.edges] += greater_E
            self.at_least_E[block.edges] += greater_E + equal_E

    def _count_chunk(self, score_PN: Tensor, rival_CN: Tensor, chunk: slice) -> None:
        score_C1 = self.score_E[chunk].unsqueeze(1)
        # Comparing in place gives 0.0 and 1.0, whose sums are vectorised, unlike those of booleans.
        torch.index_select(score_PN, 0, self.row_E[chunk], out=rival_CN)
        greater_C = rival_CN.gt_(score_C1).sum(1).long()
        torch.index_select(score_PN, 0, self.row_E[chunk], out=rival_CN)
        at_least_C = rival_CN.ge_(score_C1).sum(1).long()
        with self.threads.lock:
            self.greater_E[chunk] += greater_C
            self.at_least_E[chunk] += at_least_C


def _chunks(whole: slice, size: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))
