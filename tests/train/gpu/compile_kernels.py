"""Compiles all kernels that a step launches, on any machine; runs none of them.

    python -m tests.train.gpu.compile_kernels [ARCHITECTURE D N LOSS float32|tf32|bfloat16] ... [sizes E ...]

With `sizes`, also passes over so many edges.

They are launched by what launches them in earnest, so that they are compiled for the very arguments that they
would have. Prints for each: name, matrix instruction, bytes of shared memory and how many were counted on,
spills in its loop; of passes: name, how often it was compiled.
"""

import sys
from collections import Counter

import torch

from graphmill.ask.model import Model
from tests.compiled_kernels import Compiler
from tests.train.gpu.test_fused_step import config_of
from train.gpu import fused_pass, kernels
from train.gpu.fused_step import FusedStep, NegativeGroup, Shape
from train.gpu.reference import KernelEdges
from train.model.optimizer import Adagrad
from train.step.step import Table

CHUNK = 1024
SCORES = ("query_gradients", "candidate_gradients")


def fused_step(dimension: int, num_negatives: int, loss: str, operands: str) -> FusedStep:
    """A step whose kernels are compiled."""
    config = config_of(
        dynamic=True,
        same_type=True,
        operator="complex_diagonal",
        loss_fn=loss,
        regularization_coef=0.01,
        dimension=dimension,
        num_batch_negs=0,
        num_uniform_negs=num_negatives,
        half_precision=operands == "bfloat16",
        train={"exact_products": operands == "float32"},
    )
    model = Model(config, 10)
    fused = FusedStep(config, model, Adagrad(model.parameters, 0.1), torch.device("cpu"))
    fused.kernels = kernels
    return fused


def launch(fused: FusedStep, shape: Shape) -> None:
    """Launch what a step launches."""
    column = torch.zeros(shape.num_edges, dtype=torch.int32)
    table = Table(torch.zeros(10, fused.config.dimension), torch.zeros(10))
    fused(KernelEdges(column, column, column, None), shape, (table, table))


def step(dimension: int, num_negatives: int, loss: str, operands: str) -> None:
    """A step on two chunks, in either mode of the updates."""
    fused = fused_step(dimension, num_negatives, loss, operands)
    for fused.is_deterministic in (True, False):
        launch(fused, Shape(0, 2, CHUNK))


def passes(sizes: list[int]) -> None:
    """A pass over as many edges, for each of some sizes."""
    fused = fused_step(16, 100, "softmax", "tf32")
    for size in sizes:
        for _, shape, _ in fused_pass.cut(fused.config, [NegativeGroup(0, 0, 0, size, {})]):
            launch(fused, shape)


def main(words: list[str]) -> None:
    while words:
        if words[0] == "sizes":
            compiler = Compiler()
            passes([int(each) for each in words[1:]])
            names = Counter(kernel.name for kernel in set(compiler.launched))
            sys.stdout.write("# sizes\n" + "".join(f"{name} {count}\n" for name, count in names.items()))
            return
        architecture, dimension, num_negatives, loss, operands, *words = words
        sys.stdout.write(f"# {architecture} {dimension} {num_negatives} {loss} {operands}\n")
        compiler = Compiler(int(architecture))
        step(int(dimension), int(num_negatives), loss, operands)
        dtype = torch.bfloat16 if operands == "bfloat16" else torch.float32
        counted = kernels.shared_bytes(int(dimension), dtype, exact=operands == "float32")
        for kernel in dict.fromkeys(compiler.launched):
            # machine code is slow to read: of kernels without a stack it has no spills to tell
            spills = sum(loop.spills for loop in kernel.loops) if kernel.stack_bytes else 0
            product = kernel.product if kernel.name in SCORES else "-"
            sys.stdout.write(f"{kernel.name} {product} {kernel.shared_bytes} {counted} {spills}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
