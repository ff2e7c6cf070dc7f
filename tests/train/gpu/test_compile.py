"""The kernels compile for a Hopper GPU, on any machine: with matrix instructions, in few registers."""

import pytest

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from tests.compiled_kernels import compiled_by

pytestmark = pytest.mark.slow
SCORES = {"query_gradients", "candidate_gradients"}
STEP = SCORES | {"sample", "query", "stage", "backward", "sum_runs", "scatter"}
MOST_SPILLS = {100: 0, 400: 100, 1000: 700}  # loads and stores in loops, by dimension


CASES = (
    "80 400 1000 softmax bfloat16",
    "100 100 1000 softmax bfloat16",
    "90 400 1000 ranking bfloat16",
    "90 1000 1000 softmax tf32",
    "90 100 1000 softmax float32",
)
SIZES = "sizes 2003 2101 2205 93 205"
Told = dict[str, list[list[str]]]  # words of each line, by case


@pytest.fixture(scope="module")
def told() -> Told:
    """The lines that compile_kernels prints of each case, in words."""
    found = compiled_by("tests.train.gpu.compile_kernels", *" ".join((*CASES, SIZES)).split())
    assert found.keys() == {*CASES, "sizes"}
    return found


def test_what_is_left_of_many_groups_compiles_nothing_anew(told: Told) -> None:
    counts = {name: int(count) for name, count in told["sizes"]}
    assert max(counts[name] for name in SCORES) <= 3
    assert counts["sample"] <= 2  # by the alignment of the rows of rhs


@pytest.mark.parametrize(
    ("case", "products"),
    list(zip(CASES, ("mma.sync", "tcgen05", "wgmma", "wgmma mma.sync", "none"), strict=True)),
)
def test_all_gpus_losses_widths_and_operands(told: Told, case: str, products: str) -> None:
    """A kernel that takes more shared memory than the architecture has does not compile."""
    most_spills = MOST_SPILLS[int(case.split()[1])]
    assert {name for name, *_ in told[case]} == STEP
    for name, product, shared_bytes, counted_bytes, spills in told[case]:
        assert int(shared_bytes) <= int(counted_bytes)  # which decide if a GPU has enough
        assert int(spills) <= (most_spills if name in SCORES else 0), name
        assert name not in SCORES or product in products.split()  # no matrix unit multiplies float32
