"""The kernels compile for a Hopper GPU, on any machine: with matrix instructions, in few registers."""

import os
import subprocess
import sys

import pytest

from tests import REPOSITORY

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

STEP = {
    "sample",
    "query",
    "stage",
    "query_gradients",
    "candidate_gradients",
    "backward",
    "sum_runs",
    "scatter",
}
SCORES = {"query_gradients", "candidate_gradients"}
MOST_SPILLS = {100: 0, 400: 100, 1000: 700}  # loads and stores in loops, by dimension


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


def compiled(*cases: str) -> dict[str, list[tuple[str, str, int]]]:
    """List the kernels of each case: name, matrix instruction, spills in loops.

    A kernel that takes more shared memory than the architecture has does not compile.
    """
    found: dict[str, list[tuple[str, str, int]]] = {}
    for line in told(*[word for case in cases for word in case.split()]):
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            name, product, _, spills = line.split()
            found[list(found)[-1]].append((name, product, int(spills)))
    assert found.keys() == set(cases)
    for case, kernels in found.items():
        assert {name for name, *_ in kernels} == STEP
        dimension = int(case.split()[1])
        for name, _, spills in kernels:
            assert spills <= (MOST_SPILLS[dimension] if name in SCORES else 0), (case, name)
    return found


def products(kernels: list[tuple[str, str, int]]) -> set[str]:
    """Matrix instructions of the score kernels: `mixed` where a kernel has several."""
    return {product for name, product, _ in kernels if name in SCORES}


@pytest.mark.slow
def test_the_kernels_of_the_benchmark_multiply_by_wgmma_alone() -> None:
    for kernels in compiled("90 100 1000 softmax bfloat16", "90 400 1000 softmax bfloat16").values():
        assert products(kernels) == {"wgmma"}


@pytest.mark.slow
def test_gpus_before_and_after_hopper() -> None:
    before, after = compiled("80 400 1000 softmax bfloat16", "100 100 1000 softmax bfloat16").values()
    assert products(before) == {"mma.sync"}
    assert products(after) == {"tcgen05"}


@pytest.mark.slow
def test_what_is_left_of_many_groups_compiles_nothing_anew() -> None:
    sizes = (str(size) for size in (2003, 2101, 2205, 2307, 2409, 93, 205))
    counts = {name: int(count) for name, count in (line.split() for line in told("sizes", *sizes))}
    assert max(counts[name] for name in SCORES) <= 3
    assert counts["sample"] == 1


@pytest.mark.slow
def test_all_losses_widths_and_operands() -> None:
    logistic, ranking, wide, exact = compiled(
        *[f"90 400 1000 {loss} bfloat16" for loss in ("logistic", "ranking")],
        "90 1000 1000 softmax tf32",
        "90 100 1000 softmax float32",
    ).values()
    assert products(logistic) == products(ranking) == {"wgmma"}
    assert products(wide) <= {"wgmma", "mma.sync"}
    assert products(exact) == {"none"}  # no matrix unit multiplies float32
