"""The kernels compile for a Hopper GPU, on any machine: with matrix instructions, in few registers."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

STEP = {
    "_sample",
    "_query",
    "_stage",
    "_attend",
    "_spread",
    "_backward",
    "_sum_runs",
    "_sum_blocks",
    "_adagrad_runs",
    "_scatter",
}
RANKING = {"_pairs", "_count"}
SHARED_BYTES = 227 * 1024  # that a block can have


def compiled(*cases: str) -> dict[str, list[tuple[str, str, int, int]]]:
    """What each case compiles: name, matrix instruction, bytes of shared memory, bytes spilled a thread."""
    # in a process of its own: in this one Triton may be interpreting
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [word for case in cases for word in case.split()]
    run = subprocess.run(
        [sys.executable, "-m", "tests.train.gpu.compile_kernels", *words],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, list[tuple[str, str, int, int]]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            name, product, shared, spilled = line.split()
            found[list(found)[-1]].append((name, product, int(shared), int(spilled)))
    assert found.keys() == set(cases)
    return found


def check(*cases: str) -> None:
    for case, kernels in compiled(*cases).items():
        assert {name for name, *_ in kernels} == STEP | RANKING
        for name, product, shared, spilled in kernels:
            assert shared <= SHARED_BYTES, (case, name)
            if name not in ("_attend", "_spread"):
                assert spilled == 0, (case, name)
            elif case.endswith("float32"):
                assert product == "none", (case, name)  # no matrix unit multiplies float32
            else:
                assert product in ("wgmma", "mma.sync"), (case, name)
                assert spilled < 400, (case, name)


def test_the_kernels_of_the_benchmark() -> None:
    check("100 1000 softmax bfloat16", "400 1000 softmax bfloat16")


@pytest.mark.slow
def test_all_losses_widths_and_operands() -> None:
    losses = [f"400 1000 {loss} bfloat16" for loss in ("logistic", "ranking")]
    check(*losses, "1000 1000 softmax tf32", "100 1000 softmax float32")
