"""Filtered ranks of 10 k edges among 10 M entities, on both sides, and the best 100 for 10 k queries.

Rows are in host memory.
"""

import numpy as np
import torch
from torch import Tensor

from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.ask.edges import Graph, Triples
from graphmill.ask.evaluate.metrics import Ranks, concatenated
from graphmill.ask.evaluate.queries import Queries, block_sizes, default_block_bytes
from graphmill.ask.evaluate.ranking import Counting, Ranker, can_rank, prepare
from graphmill.ask.model import Model
from graphmill.cluster import num_cores
from graphmill.config import from_mapping
from graphmill.gpu.best import BestOnDevice
from graphmill.sorted_arrays import distinct
from graphmill.vocab import Side

K = 100
SLICE_ROWS = 1 << 20


def measure(setting: Setting, machine: Machine, report: Report) -> None:
    """Measure seconds of ranks, and the share of the float32 product rate of the device."""
    num_entities, num_edges, dimension = _size(machine)
    small = machine.is_trial
    config = from_mapping(synthetic.settings(dimension, 0, small=small) | {"output": "unused"})
    model = Model(config, synthetic.NUM_RELATIONS, relation_init="random", seed=1).to(machine.device)
    table_ND = torch.randn(num_entities, dimension, device=machine.device).cpu()
    rng = np.random.default_rng(1)
    edges = Triples(
        rng.integers(num_entities, size=num_edges),
        rng.integers(synthetic.NUM_RELATIONS, size=num_edges),
        rng.integers(num_entities, size=num_edges),
    )
    counts = {"node": [num_entities]}
    fused = can_rank(config, machine.device)
    block = block_sizes(default_block_bytes(config, fused=fused), counts["node"])
    graph = Graph(config, counts, synthetic.NUM_RELATIONS)

    def rank(_: int) -> Ranks:
        ranker = Ranker(model, machine.device, num_threads=num_cores(), fused=fused)
        return concatenated(
            [_ranks(ranker, Queries(graph, side, edges, block), edges, table_ND) for side in Side]
        )

    seconds = machine.median_s(rank, repeats=2)
    figures = _figures(machine, 2 * num_edges * num_entities * dimension, seconds)
    mean_rank = rank(0).metrics()["mean_rank"]
    report.add(f"{num_edges:,} edges against {num_entities:,} entities", **figures, mean_rank=mean_rank)
    report.ratio("seconds", seconds, "<= 3")


def measure_best(setting: Setting, machine: Machine, report: Report) -> None:
    """Measure seconds of the best candidates, as prediction and the search for neighbours find them."""
    num_entities, num_queries, dimension = _size(machine)
    table_ND = torch.randn(num_entities, dimension, device=machine.device).cpu()
    query_QD = torch.randn(num_queries, dimension, device=machine.device)
    none = torch.empty(0, dtype=torch.int64, device=machine.device)

    def search(_: int) -> BestOnDevice:
        best = BestOnDevice(query_QD, K)
        for start in range(0, num_entities, SLICE_ROWS):
            best.add(table_ND[start : start + SLICE_ROWS].to(machine.device), start, none, none)
        return best

    seconds = machine.median_s(search, repeats=2)
    found = search(0)
    score_K = query_QD[:1] @ table_ND[found.row_QK[0].cpu()].to(machine.device).T
    if not torch.allclose(score_K, found.score_QK[:1], rtol=1e-4, atol=1e-4):
        raise ArithmeticError(f"expected the scores {score_K.tolist()}, found {found.score_QK[0].tolist()}")
    figures = _figures(machine, num_queries * num_entities * dimension, seconds)
    report.add(f"best {K} of {num_entities:,} for {num_queries:,} queries", **figures)
    report.ratio("seconds", seconds, "<= 3")


def _size(machine: Machine) -> tuple[int, int, int]:
    """Numbers of entities and of queries, and the dimension."""
    return (2000, 50, 8) if machine.is_trial else (10_000_000, 10_000, 100)


def _figures(machine: Machine, num_products: int, seconds: float) -> dict[str, float]:
    rate = 2 * num_products / seconds
    return {
        "seconds": seconds,
        "TFLOP_per_s": rate / 1e12,
        "share_of_product": rate / machine.float_rate,
        "peak_bytes": machine.peak_bytes(),
    }


def _ranks(ranker: Ranker, queries: Queries, edges: Triples, table_ND: Tensor) -> Ranks:
    """Rank the queries' side of every edge; the edges themselves are the known ones."""
    side = queries.side
    vectors_QD, own_E = prepare(ranker, queries, lambda name, part, rows: table_ND[torch.from_numpy(rows)])
    query_K = queries.find(edges.rel, edges.ends(side.other))
    cells = distinct((edges.ends(side) * len(queries) + query_K)[query_K >= 0])
    counting = Counting(ranker, queries, slice(0, len(queries)), vectors_QD, own_E, cells)
    counting.add("node", 0, table_ND, lambda done: None)
    return Ranks(*counting.counts()[:, np.argsort(queries.order)])
