"""The kernels compile for a Hopper GPU, on any machine: with matrix instructions, in few registers."""

import os
import subprocess
import sys

import pytest
import torch

from tests import REPOSITORY

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from train.gpu import kernels

STEP = {
    "_sample",
    "_query",
    "_stage",
    "_query_gradients",
    "_candidate_gradients",
    "_backward",
    "_sum_runs",
    "_sum_blocks",
    "_adagrad_runs",
    "_scatter",
}
RANKING = {"_pairs", "_count"}
SHARED_BYTES = 227 * 1024  # that a block can have


def told(*words: str) -> list[str]:
    """Return the output of compile_kernels."""
    # in a process of its own: in this one Triton may be interpreting
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.train.gpu.compile_kernels", *words],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def compiled(*cases: str) -> dict[str, list[tuple[str, str, int, int]]]:
    """List the kernels of each case: name, matrix instruction, shared bytes, bytes spilled per thread."""
    found: dict[str, list[tuple[str, str, int, int]]] = {}
    for line in told(*[word for case in cases for word in case.split()]):
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            name, product, shared, spilled = line.split()
            found[list(found)[-1]].append((name, product, int(shared), int(spilled)))
    assert found.keys() == set(cases)
    return found


def check(*cases: str) -> None:
    for case, found in compiled(*cases).items():
        assert {name for name, *_ in found} == STEP | RANKING
        dimension, _, _, operands = case.split()
        dtype = torch.bfloat16 if operands == "bfloat16" else torch.float32
        most = kernels.shared_bytes(int(dimension), dtype, exact=operands == "float32")
        for name, product, shared, spilled in found:
            assert shared <= (
                most if name in ("_query_gradients", "_candidate_gradients") else SHARED_BYTES
            ), (case, name)
            assert most <= SHARED_BYTES
            if name not in ("_query_gradients", "_candidate_gradients"):
                assert spilled == 0, (case, name)
            elif case.endswith("float32"):
                assert product == "none", (case, name)  # no matrix unit multiplies float32
            else:
                assert product in ("wgmma", "mma.sync"), (case, name)
                assert spilled < 400, (case, name)


@pytest.mark.slow
def test_the_kernels_of_the_benchmark() -> None:
    check("100 1000 softmax bfloat16", "400 1000 softmax bfloat16")


@pytest.mark.slow
def test_what_is_left_of_many_groups_compiles_nothing_anew() -> None:
    sizes = (str(size) for size in (2003, 2101, 2205, 2307, 2409, 93, 205))
    counts = {name: int(count) for name, count in (line.split() for line in told("sizes", *sizes))}
    assert max(counts[name] for name in ("_query_gradients", "_candidate_gradients")) <= 3
    assert counts["_sample"] == 1


@pytest.mark.slow
def test_all_losses_widths_and_operands() -> None:
    losses = [f"400 1000 {loss} bfloat16" for loss in ("logistic", "ranking")]
    check(*losses, "1000 1000 softmax tf32", "100 1000 softmax float32")
