"""The model on a device, the queries, and the edges' own scores: all that a ranking needs before it counts.

Operators transform candidates in blocks of one shape, so that a linear operator rounds copies alike.

Shapes: D dimension (the largest of all types; a narrower type uses the first columns), E edges,
Q queries, P queries of a block, N candidates of a block, C edges of a block.
"""

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.edges import Graph, Numbers
from graphmill.ask.evaluate.comparison import Comparison
from graphmill.ask.evaluate.queries import Group, Queries, chunks
from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.gpu.device import kernels_of
from graphmill.machine.threads import Task, Threads
from graphmill.model import comparators
from graphmill.model.operators import operator_of
from graphmill.vocab import Partition, Side

FUSED_THREADS = 4
MATRIX_BYTES = 256 << 20
Report = Callable[[int], None]  # called with the number of scores so far
Take = Callable[[str, Partition, Numbers], Tensor]  # gives rows of the embeddings of a partition, [n, D]


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

    def __init__(
        self, model: Model, device: torch.device, *, num_threads: int = 1, fused: bool = False
    ) -> None:
        """`fused` counts with the kernels, which keep no scores; threads then only keep the device busy."""
        self.model, self.device = model, device
        self.num_threads = min(num_threads, FUSED_THREADS) if fused else num_threads
        self.lock = threading.Lock()
        self.comparison = Comparison(model, device)
        self.kernels = kernels_of(device) if fused else None

    def run(self, tasks: Iterator[Task], report: Report) -> None:
        """Run tasks on all threads."""
        Threads(self.num_threads, report).run(tasks)

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
