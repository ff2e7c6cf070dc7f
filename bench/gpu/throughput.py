"""Edges per second of training on a graph that is generated and kept on the device."""

import math
from dataclasses import dataclass

import torch

from bench.gpu import synthetic
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.ask.model import Model
from graphmill.config import from_mapping
from train.gpu.fused_pass import FusedPass
from train.gpu.fused_step import FusedStep, NegativeGroup
from train.gpu.reference import KernelEdges
from train.model.optimizer import Adagrad
from train.step.step import Table

WARM_UP_STEPS = 64  # enough to capture a CUDA graph


@dataclass(frozen=True)
class Graph:
    """A synthetic graph, its model, and the goal in edges per second."""

    dimension: int
    num_negatives: int
    timed_edges: int  # edges per pass
    goal: float
    num_nodes: int = 10_000_000
    num_edges: int = 200_000_000

    def sized(self, setting: Setting) -> "Graph":
        """The same graph, or for a trial a small one."""
        if setting.num_rows is None:
            return self
        return Graph(8, 16, setting.num_rows, self.goal, 500, setting.num_rows)


# As large as Twitter's. Rows and sums 16.8 GB, edges 17.6 GB; steps about 2 GB.
TWITTER = Graph(100, 1000, 1_470_000_000, goal=81.7e6, num_nodes=41_600_000, num_edges=1_470_000_000)


def measure(graph: Graph, setting: Setting, machine: Machine, report: Report) -> None:
    """Time both ways to sum gradients: one pass over all edges, or three passes over a part."""
    graph = graph.sized(setting)
    generator = torch.Generator(machine.device).manual_seed(1)
    edges = synthetic.edges(graph.num_nodes, graph.num_edges, machine.device, generator)
    floor = machine.training_floor(graph.dimension, graph.num_negatives, synthetic.CHUNK)
    for deterministic in (True, False):
        seconds, loss = _passes(graph, machine, edges, generator, deterministic=deterministic)
        what = "gradients of a row added up in order" if deterministic else "each gradient by itself"
        rate = graph.timed_edges / seconds
        report.add(
            what,
            dimension=graph.dimension,
            negatives=graph.num_negatives,
            edges=graph.timed_edges,
            seconds=seconds,
            M_edges_per_s=rate / 1e6,
            floor_M_edges_per_s=floor / 1e6,
            share_of_floor=rate / floor,
            loss=loss,
            peak_bytes=machine.peak_bytes(),
        )
        report.ratio(f"{what}: M edges/s", rate / 1e6, f">= {graph.goal / 1e6:g}")


def _passes(
    graph: Graph, machine: Machine, edges: KernelEdges, generator: torch.Generator, *, deterministic: bool
) -> tuple[float, float]:
    """Time a pass; its seconds and mean loss."""
    own = {"deterministic": deterministic, **synthetic.own_settings(small=machine.is_trial)}
    shared = synthetic.settings(graph.dimension, graph.num_negatives, small=machine.is_trial)
    shared |= {"output": "unused", "half_precision": not machine.is_trial, "train": own}
    config = from_mapping(shared)
    model = Model(config, synthetic.NUM_RELATIONS, relation_init="random", seed=1).to(machine.device)
    fused = FusedPass(FusedStep(config, model, Adagrad(model.parameters, config.lr), machine.device))
    rows_ND = torch.empty(graph.num_nodes, graph.dimension, device=machine.device)
    sums_N = torch.zeros(graph.num_nodes, device=machine.device)
    table = Table(rows_ND.normal_(0, 1e-3, generator=generator), sums_N)

    def run(group: NegativeGroup, seed: int) -> None:
        fused.run(edges, [group], [(table, table)], seed)

    run(NegativeGroup(0, 0, 0, min(graph.timed_edges, WARM_UP_STEPS * config.batch_size), {}), seed=0)
    timed = NegativeGroup(0, 0, 0, graph.timed_edges, {})
    if graph.timed_edges < graph.num_edges:
        seconds = machine.median_s(lambda number: run(timed, number))
    else:
        seconds = machine.once_s(lambda: run(timed, 1))
    loss = float(fused.step.sums[0]) / graph.timed_edges
    if not math.isfinite(loss):
        raise RuntimeError(f"{graph}: the loss is {loss}")
    return seconds, loss
