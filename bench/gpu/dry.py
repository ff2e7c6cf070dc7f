"""A step of the benchmark's cases, compiled for Hopper and counted, on any machine: nothing is run.

    python -m bench gpu --dry

Bytes are those that must cross the device's memory: a row is read once per kernel, not once per tile. Bounds
follow from them and from the machine code: `MEMORY_RATE`, and for the score kernels the clocks of the matrix
units or of the instructions, whichever are more, on all multiprocessors.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gpu import synthetic, throughput
from bench.gpu.compiled import Compiler, Kernel, Launch
from bench.report import Report
from train.gpu import kernels
from train.gpu.fused_step import Shape

CASES = {
    (100, 100): (330, None),
    (100, 1000): (250, None),
    (400, 1000): (75, 150),
}  # bounds wanted, M edges/s
MEMORY_RATE = 4.3e12  # bytes per second of one H200, read and written
CLOCKS = 132 * 1.755e9  # per second, of all multiprocessors of one H200
PRODUCTS = 2048  # multiplications and additions of bfloat16 in a clock of a multiprocessor
SYNC_SHARE = 0.62  # of this rate that mma.sync reaches on Hopper
NUM_CHUNKS = 2
NUM_ROWS = 10_000
_VIEWS = (
    "view",
    "reshape",
    "select",
    "slice",
    "expand",
    "detach",
    "alias",
    "split",
    "unsqueeze",
    "t",
    "unbind",
)
Arguments = Mapping[str, Any]


def run() -> Iterator[Report]:
    """Compile and count each case."""
    for (dimension, num_negatives), (memory_goal, score_goal) in CASES.items():
        launches, operations = step(dimension, num_negatives)
        num_edges = NUM_CHUNKS * synthetic.CHUNK
        report = Report(f"gpu dry {dimension} {num_negatives}", f"D = {dimension}, {num_negatives} negatives")
        by_kernel: dict[Kernel, list[Launch]] = defaultdict(list)
        for launch in launches:
            by_kernel[launch.kernel].append(launch)
        total = 0.0
        clocks: list[float] = []  # for each score
        for kernel, own in by_kernel.items():
            moved = sum(BYTES[kernel.name](launch.arguments) for launch in own) / num_edges
            total += moved
            figures = _figures(kernel, own[0].arguments)
            if figures:
                tile = own[0].arguments["BP"] * own[0].arguments["BK"]
                clocks.append(max(figures["matrix_clocks"], figures["issue_clocks"]) / tile)
            report.add(
                kernel.name,
                launches=len(own),
                product=kernel.product,
                registers=kernel.registers,
                warps=kernel.num_warps,
                blocks=kernel.blocks,
                shared_KiB=kernel.shared_bytes >> 10,
                spills=kernel.loop.spills,
                **figures,
                KB_per_edge=moved / 1e3,
            )
        for name, (count, moved) in operations.items():
            total += moved / num_edges
            report.add(f"torch {name}", launches=count, KB_per_edge=moved / num_edges / 1e3)
        num_launches = len(launches) + sum(count for count, _ in operations.values())
        report.add("step", launches=num_launches, KB_per_edge=total / 1e3)
        report.ratio("memory bound, M edges/s", MEMORY_RATE / total / 1e6, f">= {memory_goal}")
        if len(clocks) == 2:  # few negatives make no loop to count
            rate = CLOCKS / (2 * num_negatives * max(clocks))
            goal = f">= {score_goal}" if score_goal else ""
            report.ratio("bound of the slower score kernel, M edges/s", rate / 1e6, goal)
        yield report


def step(dimension: int, num_negatives: int) -> tuple[list[Launch], dict[str, tuple[int, int]]]:
    """Compile a step on two chunks; its launches, and for each torch operation its number and bytes."""
    compiler = Compiler()
    num_edges = NUM_CHUNKS * synthetic.CHUNK
    graph = throughput.Graph(NUM_ROWS, num_edges, 0, dimension, num_negatives, 0.0)
    config = throughput.configured(graph, deterministic=True, small=False)
    device = torch.device("cpu")
    fused = throughput.step_of(config, device)
    fused.kernels = kernels
    generator = torch.Generator().manual_seed(1)
    edges = synthetic.edges(graph.num_nodes, num_edges, device, generator)
    table = throughput.table_of(graph, device, generator)
    with Operations() as operations:
        fused(edges, Shape(0, NUM_CHUNKS, synthetic.CHUNK), (table, table))
    return compiler.launches, operations.found()


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch's operations that launch something, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        name = function.overloadpacket.__name__
        if not name.strip("_").startswith(("empty", "new_empty", *_VIEWS)):
            results = result if isinstance(result, tuple) else (result,)
            tensors = [each for each in (*arguments, *results) if isinstance(each, Tensor)]
            self.count[name] += 1
            passes = 4 if name == "sort" else 1  # radix sort of 32-bit keys
            self.bytes[name] += passes * sum(each.numel() * each.element_size() for each in tensors)
        return result

    def found(self) -> dict[str, tuple[int, int]]:
        """For each operation its number and bytes."""
        return {name: (count, self.bytes[name]) for name, count in self.count.items()}


def _figures(kernel: Kernel, arguments: Arguments) -> dict[str, float]:
    """Instructions and clocks of a score kernel, for one tile."""
    tile = arguments.get("BP", 0) * arguments.get("BK", 0)
    if not tile or not kernel.loop.size:
        return {}
    return {
        "instructions_per_score": kernel.loop.size * kernel.num_warps * 32 / tile,
        "matrix_clocks": matrix_clocks(kernel),
        "issue_clocks": kernel.loop.size * kernel.num_warps / 4,
    }


def matrix_clocks(kernel: Kernel) -> float:
    """Clocks of a multiprocessor's matrix units for one tile."""
    clocks = 0.0
    for name, count in kernel.loop.instructions.items():
        if found := re.match(r"HGMMA\.64x(\d+)x16", name):  # of four warps
            clocks += count * kernel.num_warps / 4 * 64 * int(found[1]) * 16 / PRODUCTS
        elif name.startswith("HMMA.16816"):
            clocks += count * kernel.num_warps * 16 * 8 * 16 / PRODUCTS / SYNC_SHARE
    return clocks


def _row(tensor: Tensor) -> int:
    """Bytes of a row."""
    return tensor.stride(-2) * tensor.element_size()


def _sample(own: Arguments) -> int:
    num_edges: int = own["C"] * own["P"]
    num_candidates: int = own["out_lhs"].numel()
    return num_edges * (2 * 12 + 4) + 2 * 4 * num_candidates


def _query(own: Arguments) -> int:
    num: int = own["num_queries"]
    return num * (_row(own["table"]) + 2 * _row(own["out"]))


def _stage(own: Arguments) -> int:
    num: int = own["num_rows"]
    return num * (_row(own["table"]) + _row(own["out"]))


def _scores(own: Arguments) -> int:
    query, candidate, gradient = own["query"], own["candidate"], own["gradient"]
    negatives: int = candidate.shape[1] - own["FIRST"]
    num_chunks: int = query.shape[0]
    written: int = query.shape[1] if gradient.shape == query.shape else negatives
    loaded: int = (query.shape[1] + negatives) * _row(query)
    return num_chunks * (loaded + written * _row(gradient))


def _backward(own: Arguments) -> int:
    num: int = own["num_queries"]
    names = ["table", "gradient", "query", "to_own", "to_row", *["to_row"] * own["ADD"]]
    return num * sum(_row(own[name]) for name in names)


def _sum_runs(own: Arguments) -> int:
    """All rows differ; the parameters of relations stay in the cache."""
    num: int = own["T"]
    is_first = not own["ORDERED"] and len(own["table"]) == NUM_ROWS
    return num * _row(own["gradient"]) + (2 * num * _row(own["table"]) if is_first else 0)


# Bytes of each kernel's launch.
BYTES: dict[str, Callable[[Arguments], int]] = {
    "sample": _sample,
    "query": _query,
    "stage": _stage,
    "query_gradients": _scores,
    "candidate_gradients": _scores,
    "backward": _backward,
    "sum_runs": _sum_runs,
}
