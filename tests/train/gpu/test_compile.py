"""The kernels compile for a Hopper GPU, on any machine: with matrix instructions, in few registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


def run_apart(*words: str) -> str:
    """Return the output of a module, run in a process of its own: in this one Triton may be interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", *words],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def told(*words: str) -> list[str]:
    """Return the output of compile_kernels."""
    return run_apart("tests.train.gpu.compile_kernels", *words).splitlines()


def compiled(*cases: str) -> dict[str, list[tuple[str, str, int]]]:
    """List the kernels of each case: name, matrix instruction, spills in loops.

    A kernel that takes more shared memory than the architecture has does not compile.
    """
    found: dict[str, list[tuple[str, str, int]]] = {}
    for line in told(*[word for case in cases for word in case.split()]):
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            name, product, shared_bytes, counted_bytes, spills = line.split()
            assert int(shared_bytes) <= int(counted_bytes), line  # which decide if a GPU has enough
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
def test_counted_steps_of_the_benchmark(tmp_path: Path) -> None:
    """Bytes and clocks of the compiled steps allow what the benchmark is to reach."""
    run_apart("bench", "gpu", "--dry", "--json", str(tmp_path / "dry.json"))
    reports = json.loads((tmp_path / "dry.json").read_text())["reports"].values()
    assert len(reports) == 3
    for report in reports:
        rows = {row["what"]: row for row in report["rows"]}
        assert {rows[name]["product"] for name in SCORES} == {"wgmma"}
        assert rows["step"]["launches"] <= 29
        for ratio in report["ratios"]:
            if ratio["goal"]:
                assert ratio["value"] >= float(ratio["goal"].removeprefix(">= ")), ratio


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
    assert counts["sample"] <= 2  # by the alignment of the rows of rhs


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
