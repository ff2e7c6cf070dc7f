"""Every kernel against its reference in float64: on the GPU, or in Triton's interpreter without one."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmill.model.operators import operator_of
from train.gpu import reference
from train.gpu.reference import LOSSES, OPERATORS, KernelClock, KernelComparison, KernelSource, Positive

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from train.gpu import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_ROWS, NUM_RELATIONS = 40, 5
SOME = 40  # gradients: every row is moved, in one program or two
LR = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
Results = dict[str, Tensor]  # by name


class Problem:
    """One side of a step on random numbers, in any dtype."""

    def __init__(self, seed: int, chunks: int, positives: int, drawn: int, dimension: int) -> None:
        generator = torch.Generator(DEVICE).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=DEVICE)

        def number(limit: int, *shape: int) -> Tensor:
            return torch.randint(limit, shape, generator=generator, device=DEVICE, dtype=torch.int32)

        self.table_ND = normal(NUM_ROWS, dimension) / 2
        self.sums_N = normal(NUM_ROWS).square()
        self.parameters_RD = normal(NUM_RELATIONS, dimension)
        self.rows_CK = number(NUM_ROWS, chunks, positives + drawn)
        self.others_CK = number(NUM_ROWS, chunks, positives + drawn)
        self.rel_CP = number(NUM_RELATIONS, chunks, positives)
        self.weight_CP = normal(chunks, positives).square() + 0.5

    def to(self, dtype: torch.dtype) -> "Problem":
        other = object.__new__(Problem)
        vars(other).update({k: v.to(dtype) if v.is_floating_point() else v for k, v in vars(self).items()})
        return other


def side_of_a_step(module, problem, operator, loss, adjoint, first, operand):
    """Return the results of all functions, in the order of a step."""
    parameters_RD = None if operator == "none" else problem.parameters_RD
    num_positives = problem.rel_CP.shape[1]
    others_CP = problem.others_CK[:, :num_positives]
    source = KernelSource(operator, adjoint, problem.table_ND, others_CP, parameters_RD, problem.rel_CP)
    others_CKD = module.stage(problem.table_ND, problem.others_CK, num_positives, operand)
    query_CPD = module.query(source, others_CKD)
    candidate_CKD = module.stage(problem.table_ND, problem.rows_CK, num_positives, operand)
    module.query(source._replace(rows_CP=problem.rows_CK[:, :num_positives]), candidate_CKD)
    comparison = KernelComparison(
        loss, 0.1, query_CPD, candidate_CKD, problem.rows_CK, first, problem.weight_CP, exact=True
    )
    compared = module.query_gradients(comparison)
    gradient_CKD = torch.full_like(candidate_CKD, torch.nan, dtype=problem.table_ND.dtype)
    module.candidate_gradients(comparison, compared.saved, gradient_CKD)
    results = {"query": query_CPD, "candidates": candidate_CKD, "others": others_CKD}
    results |= {"loss": compared.loss_CP, "violators": compared.violators_CP}
    results |= {"query gradients": compared.gradient_CPD, "pulls": compared.pull_CP}
    results |= {"negatives' gradients": gradient_CKD[:, first:].clone()}
    positive = Positive(query_CPD, compared.pull_CP, is_negative=not first)
    related_CPD = torch.full_like(compared.gradient_CPD, torch.nan)
    cost_CP = module.backward(
        source, compared.gradient_CPD, positive, (0.03, 0.02), gradient_CKD, related_CPD
    )
    results |= {"candidate gradients": gradient_CKD, "cost": cost_CP}
    if parameters_RD is None:
        return results
    return results | {"related": related_CPD}


def updates(module: Any, problem: Problem, results: Results) -> Results:
    """Return what some of the gradients make of rows and parameters; `test_runs_` takes many."""
    rows_T, gradient_TD = (
        each[:SOME] for each in (problem.rows_CK.flatten(), results["candidate gradients"].flatten(0, 1))
    )
    moved = {}
    for update, touched in ((module.update_rows, module.runs(rows_T)), (module.update_rows_fast, rows_T)):
        table_ND, sums_N = problem.table_ND.clone(), problem.sums_N.clone()
        update(table_ND, sums_N, touched, gradient_TD, LR)
        moved |= {f"{update.__name__} table": table_ND, f"{update.__name__} sums": sums_N}
    return moved


def assert_alike(found: Results, wanted: Results, tolerance: float, *skipped: str) -> None:
    assert found.keys() == wanted.keys()
    for name, expected in wanted.items():
        if name not in skipped:
            distance = (found[name].double() - expected.double()).norm() / (expected.double().norm() + 1e-9)
            assert distance < tolerance, f"{name}: {float(distance):.1e} away"  # false for NaN too


@pytest.mark.slow
@settings(max_examples=8)
@given(
    operator=st.sampled_from([*OPERATORS]),
    loss=st.sampled_from([*LOSSES]),
    adjoint=st.booleans(),
    chunks=st.integers(1, 3),
    positives=st.integers(1, 70),
    drawn=st.integers(0, 70),
    half=st.integers(1, 70),
    in_batch=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_kernels_compute_what_the_reference_defines(
    operator, loss, adjoint, chunks, positives, drawn, half, in_batch, seed
):
    problem = Problem(seed, chunks, positives, drawn, 2 * half)
    first = 0 if in_batch else positives
    adjoint = adjoint and operator_of(operator).is_linear  # `supported` asks for no other
    exact = problem.to(torch.float64)
    wanted = side_of_a_step(reference, exact, operator, loss, adjoint, first, torch.float64)
    found = side_of_a_step(kernels, problem, operator, loss, adjoint, first, torch.float32)
    wanted |= updates(reference, exact, wanted)
    found |= updates(kernels, problem, found)
    # on a GPU occurrences come in any order, and every order gives other rows, if the same sums
    assert_alike(found, wanted, 1e-4, *(("update_rows_fast table",) if DEVICE == "cuda" else ()))


def test_rows_that_occur_once_move_alike_in_either_mode() -> None:
    """With a sum of squares for every number."""
    problem = Problem(5, 1, NUM_ROWS, 0, 46)
    generator = torch.Generator().manual_seed(6)
    rows_T = torch.randperm(NUM_ROWS, generator=generator)[:17].to(DEVICE, torch.int32)
    gradient_TD = torch.randn(17, 46, generator=generator).to(DEVICE)
    moved = []
    for module, name, dtype in (
        (reference, "update_rows", torch.float64),
        (kernels, "update_rows", torch.float32),
        (kernels, "update_rows_fast", torch.float32),
    ):
        table_ND = problem.table_ND.to(dtype, copy=True)
        sums = table_ND.square()
        touched = rows_T if name == "update_rows_fast" else module.runs(rows_T)
        getattr(module, name)(table_ND, sums, touched, gradient_TD.to(dtype), LR)
        moved.append({"table": table_ND, "sums": sums})
    for found in moved[1:]:
        assert_alike(found, moved[0], 1e-6)


@pytest.mark.slow
def test_operands_of_half_width() -> None:
    # Triton's interpreter multiplies the bits of bfloat16 as integers
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    problem = Problem(1, 2, 65, 40, 50)
    wanted = side_of_a_step(
        reference, problem.to(torch.float64), "complex_diagonal", "softmax", False, 0, torch.float64
    )
    found = side_of_a_step(kernels, problem, "complex_diagonal", "softmax", False, 0, half)
    names = {"query", "candidates", "loss", "query gradients", "candidate gradients"}
    assert_alike({n: found[n] for n in names}, {n: wanted[n] for n in names}, 2e-2)


def check_update(table_ND: Tensor, sums: Tensor, rows_T: Tensor, gradient_TD: Tensor) -> None:
    modules: list[Any] = [reference, kernels]
    results = []
    for module, dtype in zip(modules, (torch.float64, torch.float32), strict=True):
        own = {"table": table_ND.to(dtype, copy=True), "sums": sums.to(dtype, copy=True)}
        module.update_rows(own["table"], own["sums"], module.runs(rows_T), gradient_TD.to(dtype), LR)
        results.append(own)
    assert not torch.equal(results[1]["table"], table_ND)
    assert_alike(results[1], results[0], 1e-5)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    num_rows=st.integers(1, 300),
    num_gradients=st.integers(1, 2500),
    power=st.sampled_from([1, 8]),
    element_wise=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_runs_of_any_length_are_summed_whole(num_rows, num_gradients, power, element_wise, seed):
    generator = torch.Generator().manual_seed(seed)
    # with a power, few rows have most of the gradients
    drawn_T = torch.rand(num_gradients, generator=generator, dtype=torch.float64) ** power
    rows_T = (drawn_T * num_rows).to(DEVICE, torch.int32)
    gradient_TD = torch.randn(num_gradients, 12, generator=generator).to(DEVICE)
    problem = Problem(seed, 1, 1, 1, 12)
    table_ND = problem.table_ND.repeat(num_rows // NUM_ROWS + 1, 1)
    sums = table_ND.square() if element_wise else table_ND[:, 0].square()
    check_update(table_ND, sums, rows_T, gradient_TD)


@pytest.mark.slow
def test_a_row_in_almost_every_place_is_summed_whole() -> None:
    num_rows, others = 3300, 40  # more than 32 blocks of 32
    problem = Problem(2, 1, num_rows, 0, 24)
    gradient_TD = problem.table_ND[problem.rows_CK.flatten().long()]
    rows_T = torch.full((num_rows,), 7, dtype=torch.int32, device=DEVICE)
    rows_T[:others] = torch.arange(others, dtype=torch.int32, device=DEVICE) // 2
    check_update(problem.table_ND, problem.sums_N, rows_T, gradient_TD)


@pytest.mark.parametrize(
    ("first", "size", "weighted", "own"),
    [(0, 1000, False, ()), (100, 333, True, (0, 30, 1 << 32, 8, 20, 1 << 30)), (5, 7, True, ())],
)
def test_samples_are_the_same_numbers(first: int, size: int, weighted: bool, own: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    columns = [torch.randint(30, (1000,), generator=generator, dtype=torch.int32) for _ in range(3)]
    weight = torch.rand(1000, generator=generator).to(DEVICE) if weighted else None
    edges = reference.KernelEdges(*(column.to(DEVICE) for column in columns), weight)
    clock = KernelClock(0xDEADBEEF, size // 3, first, size, reference.half_bits(size), 30, 20, *own)
    clock_F = torch.tensor(clock, device=DEVICE)
    positives = min(size // 4 + 1, 37)
    shape = (2, positives, positives // 2, 11)
    wanted = reference.sample(edges, clock_F, shape)
    found = kernels.sample(edges, clock_F, shape)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert wanted.rows_SCK[1].max() < 30


@pytest.mark.parametrize("dimension", [2, 3])
def test_operands_end_with_zeros(dimension: int) -> None:
    """A row of two numbers takes the place of four; what memory held there before must not count."""
    problem = Problem(1, 2, 3, 40, dimension)
    poison = [torch.full((2, 43, 48), torch.nan, device=DEVICE)[:, :, :width] for width in (4, 48)]
    poison += [torch.full((2, 43, 4), torch.nan, device=DEVICE) for _ in range(20)]
    del poison
    staged_CKD = kernels.stage(problem.table_ND, problem.rows_CK, 3, torch.float32)
    whole_CKW = staged_CKD._base
    assert whole_CKW is not None
    assert (whole_CKW[:, 3:, dimension:] == 0).all()
