"""Time of each kernel in a step, and of the score kernels with other tiles.

For tuning: write the fastest tiles into train/gpu/kernels/tiles.py.
"""

import re
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu import synthetic, throughput
from bench.gpu.device import Machine
from bench.gpu.throughput import Graph
from bench.report import Report
from bench.setting import Setting
from train.gpu.fused_pass import FusedPass
from train.gpu.fused_step import NegativeGroup
from train.gpu.reference import KernelComparison

STEPS = 50
LEAST_S = 1e-6  # per step: less is left out
TILES = {
    128: ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2)),
    512: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 2), (32, 32, 8, 2), (128, 64, 8, 1)),
}


def measure(dimension: int, num_negatives: int, setting: Setting, machine: Machine, report: Report) -> None:
    """Measure milliseconds per step of each kernel, then of each tile."""
    graph = Graph(1_000_000, 10_000_000, 0, dimension, num_negatives, 0.0).sized(setting)
    _launches(graph, machine, report)
    if machine.device.type == "cuda":
        _tiles(graph, machine, report)


def _launches(graph: Graph, machine: Machine, report: Report) -> None:
    """Time what the steps of a pass launch: captured steps on a GPU."""
    config = throughput.configured(graph, deterministic=True, small=machine.is_trial)
    generator = torch.Generator(machine.device).manual_seed(1)
    edges = synthetic.edges(graph.num_nodes, graph.num_edges, machine.device, generator)
    table = throughput.table_of(graph, machine.device, generator)
    fused = FusedPass(throughput.step_of(config, machine.device))
    steps = 1 if machine.is_trial else STEPS
    group = NegativeGroup(0, 0, steps * config.batch_size)

    def run(seed: int) -> None:
        fused.run(edges, [group], {0: (table, table)}, seed)

    step_s = machine.median_s(run) / steps
    activity = ProfilerActivity.CPU if machine.is_trial else ProfilerActivity.CUDA
    with profile(activities=[activity], acc_events=True) as watched:
        run(0)
        machine.wait()
    for event in watched.key_averages():
        seconds = 1e-6 * (event.self_cpu_time_total if machine.is_trial else event.self_device_time_total)
        if seconds / steps < LEAST_S:
            continue
        report.add(
            re.sub(r"<.*|\(.*", "", event.key),
            dimension=graph.dimension,
            negatives=graph.num_negatives,
            launches=event.count / steps,
            ms_per_step=1e3 * seconds / steps,
            share=seconds / steps / step_s,
        )
    report.add("a step", dimension=graph.dimension, negatives=graph.num_negatives, ms_per_step=1e3 * step_s)


def _tiles(graph: Graph, machine: Machine, report: Report) -> None:
    from train.gpu import kernels
    from train.gpu.kernels import tiles

    chunks, positives = 128, synthetic.CHUNK
    candidates = positives + graph.num_negatives
    table_ND = torch.randn(100_000, graph.dimension, device=machine.device)
    rows_CK = torch.randint(len(table_ND), (chunks, candidates), device=machine.device, dtype=torch.int32)
    candidate_CKD = kernels.stage(table_ND, rows_CK, 0, torch.bfloat16)
    query_CPD = kernels.stage(table_ND, rows_CK[:, :positives].contiguous(), 0, torch.bfloat16)
    weight_CP = torch.ones(chunks, positives, device=machine.device)
    comparison = KernelComparison(
        "softmax", 0.1, query_CPD, candidate_CKD, rows_CK, positives, weight_CP, exact=False
    )
    out_CKD = torch.empty(candidate_CKD.shape, device=machine.device)
    compared = kernels.query_gradients(comparison)
    width = max(128, tiles.width_of(graph.dimension))
    works: dict[tiles.Kernel, Callable[[int], object]] = {
        "query_gradients": lambda _: kernels.query_gradients(comparison),
        "candidate_gradients": lambda _: kernels.candidate_gradients(comparison, compared.saved, out_CKD),
    }
    for kernel, work in works.items():
        by_width = tiles.TILES[kernel]["bfloat16"]
        chosen = by_width[width]
        for tile in TILES[width]:
            by_width[width] = (tiles.Tile(*tile),)
            try:
                seconds = machine.median_s(work, repeats=5)
            except Exception as error:  # too many registers, or too much shared memory
                report.notes.append(f"{kernel}, tile {tile}: {str(error).splitlines()[0]}")
                continue
            report.add(
                f"{kernel}, tile {' '.join(map(str, tile))}",
                dimension=graph.dimension,
                negatives=graph.num_negatives,
                ms_per_side=1e3 * seconds,
            )
        by_width[width] = chosen
