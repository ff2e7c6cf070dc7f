"""Compiles the kernels as they are launched, on any machine; runs none of them.

    python -m tests.graphmill.gpu.compile_kernels CAPABILITY ...

Prints of each kernel: name, kind of product, bytes of shared memory and of stack, matrix instructions.
"""

import sys

import torch

from graphmill.gpu import kernels
from tests.compiled_kernels import Compiler

DIMENSION = 100


def main(capability: int) -> None:
    sys.stdout.write(f"# {capability}\n")
    compiler = Compiler(capability)
    query_QD, table_ND = torch.zeros(16, DIMENSION), torch.zeros(16, DIMENSION)
    row_P = torch.zeros(16, dtype=torch.int64)
    kernels.count_above(query_QD, table_ND, kernels.pair_scores(query_QD, table_ND, row_P, row_P))
    kernels.tile_maxima(query_QD, table_ND)
    kernels.tile_scores(query_QD, table_ND, row_P, row_P)
    for kernel in dict.fromkeys(compiler.launched):
        names = "+".join(sorted(kernel.matrix_instructions)) or "none"
        words = kernel.name, kernel.product, kernel.shared_bytes, kernel.stack_bytes, names
        sys.stdout.write(" ".join(map(str, words)) + "\n")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        main(int(word))
