"""Compiles the kernels as they are launched, on any machine; runs none of them.

    python -m tests.graphmill.gpu.compile_kernels CAPABILITY D ...

Prints of each kernel: D, name, matrix instructions, bytes of shared memory, registers, bytes of stack.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from graphmill.gpu import kernels

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Device:
    """Stands for a driver, which Triton asks before a compilation."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(capability: int, dimensions: list[int]) -> None:
    driver.set_active(Device(capability))
    compile_only = JITFunction.run

    def run(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = compile_only(function, *arguments, grid=grid, warmup=True, **options)
        ptx = kernel.asm["ptx"]
        products = set(re.findall(r"(?:wgmma\.mma|tcgen05\.mma|mma\.sync)[\w.:]*", ptx))
        words = "+".join(sorted(products)) or "none", kernel.metadata.shared, *resources(kernel.asm["cubin"])
        sys.stdout.write(f"{options['D']} {function.__name__} {' '.join(map(str, words))}\n")

    JITFunction.run = run
    for dimension in dimensions:
        query_QD, table_ND = torch.zeros(16, dimension), torch.zeros(16, dimension)
        row_P = torch.zeros(16, dtype=torch.int64)
        kernels.count_above(query_QD, table_ND, kernels.pair_scores(query_QD, table_ND, row_P, row_P))
        kernels.tile_maxima(query_QD, table_ND)
        kernels.tile_scores(query_QD, table_ND, row_P, row_P)


def resources(cubin: bytes) -> tuple[str, str]:
    """Registers of a thread, and bytes of its stack, where spilled registers go."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [CUOBJDUMP, "--dump-resource-usage", path]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found, told
    return found[1], found[2]


if __name__ == "__main__":
    main(int(sys.argv[1]), list(map(int, sys.argv[2:])))
