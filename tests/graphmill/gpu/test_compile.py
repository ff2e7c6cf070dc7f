"""The kernels compile on any machine, for the GPUs that may run them: on matrix units, in their registers."""

import os
import subprocess
import sys

import pytest

from tests import REPOSITORY

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

# compute capability -> its matrix instruction, KiB of a block's shared memory (80: those of 86), and bytes of
# spilled registers: on 80 a few, outside the innermost loop
GPUS = {80: ("mma.sync", 99, 100), 90: ("wgmma", 227, 0), 100: ("tcgen05", 227, 0)}
SCORES = ("pairs", "count", "maxima")


@pytest.mark.slow
@pytest.mark.parametrize("capability", list(GPUS))
def test_kernels(capability: int) -> None:
    instruction, shared_kib, spilled = GPUS[capability]
    # in a process of its own: in this one Triton may be interpreting
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.graphmill.gpu.compile_kernels", str(capability), "100"],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    kernels = [line.split() for line in run.stdout.splitlines()]
    assert {name for name, *_ in kernels} == {*SCORES, "tiles"}
    for name, product, shared, stack, _ in kernels:
        assert int(shared) <= shared_kib * 1024
        assert int(stack) <= spilled
        assert product == (instruction if name in SCORES else "none")
    # one instruction: a score is the same in all kernels
    assert len({names for name, *_, names in kernels if name in SCORES}) == 1
