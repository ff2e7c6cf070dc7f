"""Time of each kernel in a step, and of the score kernels with other tiles.

For tuning: write the fastest tiles into train/gpu/kernels/tiles.py.
"""

from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from bench.gpu import synthetic, throughput
from bench.gpu.device import Machine
from bench.gpu.throughput import Graph
from bench.report import Report
from bench.setting import Setting
from train.config import TrainConfig
from train.gpu import counter
from train.gpu.fused_step import Shape
from train.gpu.reference import Clock, Comparison

STEPS = 10
TILES = {
    128: ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2)),
    512: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 2), (32, 32, 8, 2), (128, 64, 8, 1)),
}


class Timed:
    """The functions of a module, timed: each call waits for the device before and after."""

    def __init__(self, module: ModuleType, machine: Machine) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._module, self._machine = module, machine

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)

        def timed(*arguments: Any) -> Any:
            found = []
            self.seconds[name] += self._machine.once_s(lambda: found.append(function(*arguments)))
            return found[0]

        return timed


def measure(dimension: int, num_negatives: int, setting: Setting, machine: Machine, report: Report) -> None:
    """Measure milliseconds per step of each kernel, then of each tile."""
    graph = Graph(1_000_000, 10_000_000, 0, dimension, num_negatives, 0.0).sized(setting)
    _functions(graph, machine, report)
    if machine.device.type == "cuda":
        _tiles(graph, machine, report)


def _functions(graph: Graph, machine: Machine, report: Report) -> None:
    config = throughput.configured(graph, deterministic=True, small=machine.is_trial)
    generator = torch.Generator(machine.device).manual_seed(1)
    edges = synthetic.edges(graph.num_nodes, graph.num_edges, machine.device, generator)
    table = throughput.table_of(graph, machine.device, generator)
    step = throughput.step_of(config, machine.device)
    timed = Timed(step.kernels, machine)
    step.kernels = timed  # type: ignore[assignment]
    step.update_rows = timed.update_rows
    chunk = config.section(TrainConfig).chunk_edges
    shape = Shape(0, config.batch_size // chunk, chunk)
    step.operators.load(0)
    bits, nodes = counter.half_bits(graph.num_edges), graph.num_nodes
    for number in range(STEPS + 1):
        if number == 1:
            timed.seconds.clear()  # compile time
        clock = Clock(1, number * shape.num_edges, 0, graph.num_edges, bits, nodes, nodes)
        step.clock_F.copy_(torch.tensor(clock))
        step(edges, shape, (table, table))
    total = sum(timed.seconds.values())
    for name, seconds in sorted(timed.seconds.items(), key=lambda entry: -entry[1]):
        report.add(
            name,
            dimension=graph.dimension,
            negatives=graph.num_negatives,
            ms_per_step=1e3 * seconds / STEPS,
            share=seconds / total,
        )


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
    comparison = Comparison(
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
