"""Compiles all kernels that a step and a ranking launch, for Hopper, on any machine; runs none of them.

    python -m tests.train.gpu.compile_kernels D N LOSS float32|tf32|bfloat16 ...        (four words a case)
    python -m tests.train.gpu.compile_kernels sizes E ...       (passes over so many edges)

They are launched by what launches them in earnest, so that they are compiled for the very arguments that they
would have. Prints for each: name, matrix instruction, bytes of shared memory, bytes of registers spilled; of
passes: name, how often it was compiled.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from graphmill.config import from_mapping
from train.gpu import fused_pass, kernels
from train.gpu.fused_step import FusedStep, Group, Shape
from train.gpu.reference import Edges
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.table import Table

CHUNK = 1024


class Hopper:
    """Stands for a driver, which Triton asks before a compilation."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Stands for every launch."""

    def __init__(self) -> None:
        self.kernels: dict[Any, str] = {}
        compile_only = JITFunction.run

        def run(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
            kernel = compile_only(function, *arguments, grid=grid, warmup=True, **options)
            self.kernels[kernel] = function.__name__

        JITFunction.run = run
        driver.set_active(Hopper())

    def tell(self) -> None:
        for kernel, name in self.kernels.items():
            ptx = kernel.asm["ptx"]
            product = "wgmma" if "wgmma" in ptx else "mma.sync" if "mma.sync" in ptx else "none"
            sys.stdout.write(f"{name} {product} {kernel.metadata.shared} {spilled_bytes(ptx)}\n")
        self.kernels.clear()


def spilled_bytes(ptx: str) -> int:
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        run = subprocess.run(
            [ptxas, "-v", "--gpu-name=sm_90a", path, "-o", Path(folder, "kernel.o")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return max(int(number) for number in re.findall(r"(\d+) bytes spill stores", run.stderr))


def fused_step(dimension: int, num_negatives: int, loss: str, operands: str) -> FusedStep:
    """A step whose kernels are compiled."""
    config = from_mapping(
        {
            "output": "unused",
            "entities": {"node": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "complex_diagonal"}],
            "dynamic_relations": True,
            "global_emb": False,
            "comparator": "dot",
            "loss_fn": loss,
            "regularization_coef": 0.01,
            "dimension": dimension,
            "num_batch_negs": 0,
            "num_uniform_negs": num_negatives,
            "half_precision": operands == "bfloat16",
            "train": {"exact_products": operands == "float32"},
        }
    )
    model = Model(config, 10)
    fused = FusedStep(config, model, Adagrad(model.parameters, 0.1), torch.device("cpu"))
    fused.kernels = kernels
    return fused


def launch(fused: FusedStep, shape: Shape) -> None:
    """Launch what a step launches."""
    column = torch.zeros(shape.num_edges, dtype=torch.int32)
    table = Table(torch.zeros(10, fused.config.dimension), torch.zeros(10))
    fused(Edges(column, column, column, None), shape, (table, table))


def step(*case: Any) -> None:
    """A step on two chunks, in either mode of the updates."""
    fused = fused_step(*case)
    for update_rows in (kernels.update_rows, kernels.update_rows_fast):
        fused.update_rows = update_rows
        launch(fused, Shape(0, 2, CHUNK))


def passes(sizes: list[int]) -> None:
    """A pass over as many edges, for each of some sizes."""
    fused = fused_step(16, 100, "softmax", "tf32")
    fused.update_rows = kernels.update_rows
    for size in sizes:
        for _, shape, _ in fused_pass.cut(fused.config, [Group(0, 0, size)]):
            launch(fused, shape)


def ranking(dimension: int) -> None:
    """Launch what a ranking launches."""
    row_T = torch.zeros(16, dtype=torch.int64)
    query_QD, table_ND = torch.zeros(16, dimension), torch.zeros(16, dimension)
    score_T: Tensor = kernels.pair_scores(query_QD, table_ND, row_T, row_T)
    kernels.count_above(query_QD, table_ND, score_T)


def main(words: list[str]) -> None:
    compiled = Compiled()
    if words[0] == "sizes":
        passes([int(each) for each in words[1:]])
        for name, count in Counter(compiled.kernels.values()).items():
            sys.stdout.write(f"{name} {count}\n")
        return
    while words:
        dimension, num_negatives, loss, operands, *words = words
        sys.stdout.write(f"# {dimension} {num_negatives} {loss} {operands}\n")
        step(int(dimension), int(num_negatives), loss, operands)
        ranking(int(dimension))
        compiled.tell()


if __name__ == "__main__":
    main(sys.argv[1:])
