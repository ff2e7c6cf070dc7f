"""Compiled passes of a step on queries, beside those of PyTorch; test_grouped.py has whole steps."""

import math

import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from train.compiled import query_passes
from train.compiled.query_passes import CompiledPasses
from train.step.queries import TORCH
from train.step.table import Table

pytestmark = pytest.mark.skipif(query_passes.library() is None, reason="no C++ compiler")


@pytest.fixture
def passes():
    return CompiledPasses(query_passes.library())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 65, 4003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_is_that_of_exact_numbers(passes, dtype, width, num_threads):
    generator = torch.Generator().manual_seed(width)
    score_QN = (torch.randn(70, width, generator=generator) * 20).to(dtype)
    score_QN[3, -1] = -1e30
    exact_QN = score_QN.double()
    with cpu_threads(num_threads):
        found = passes.softmax(score_QN)
    assert torch.equal(found.best_Q.double(), exact_QN.amax(1))
    torch.testing.assert_close(found.total_Q.double(), exact_QN.logsumexp(1), rtol=1e-6, atol=1e-6)
    assert found.odds_QN.data_ptr() == score_QN.data_ptr()
    rounding = 1e-5 + (2.0**-8 if dtype is torch.bfloat16 else 0)  # scores have six digits
    torch.testing.assert_close(
        found.odds_QN.double(), exact_QN.softmax(1), rtol=rounding, atol=1e-37, check_dtype=False
    )


@pytest.mark.parametrize("place", [0, 63, 64, 66])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_a_number_does_not_get_lost(passes, number, place):
    score_QN = torch.zeros(2, 67)
    score_QN[1, place] = number
    found = passes.softmax(score_QN)
    assert found.total_Q.isfinite().tolist() == [True, False]
    assert found.odds_QN.isfinite().all(1).tolist() == [True, False]


@pytest.mark.parametrize("element_wise", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("dimension", [1, 16, 37])
def test_rows_move_as_torch_moves_them(passes, dimension, max_norm, element_wise):
    generator = torch.Generator().manual_seed(dimension)
    embeddings_ND = torch.randn(500, dimension, generator=generator)
    sums = torch.rand((500, dimension) if element_wise else 500, generator=generator)
    sums[7] = math.inf  # a row that rests
    ours = [Table(embeddings_ND.clone(), sums.clone()) for _ in range(2)]
    theirs = Table(embeddings_ND.clone(), sums.clone())
    rows_K = torch.randint(0, 300, (20_000,), generator=generator)
    gradient_KD = torch.randn(len(rows_K), dimension, generator=generator)
    for table, num_threads in zip(ours, (1, 5), strict=True):
        with cpu_threads(num_threads):
            passes.update_rows(table, rows_K, gradient_KD, 0.3, max_norm)
    TORCH.update_rows(theirs, rows_K, gradient_KD, 0.3, max_norm)
    for part in ("embeddings_ND", "sums"):
        one, several = (getattr(table, part) for table in ours)
        assert torch.equal(one, several), "the number of threads changes nothing"
        torch.testing.assert_close(one, getattr(theirs, part), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[0].embeddings_ND[300:], embeddings_ND[300:])
    if max_norm is None:
        assert torch.equal(ours[0].embeddings_ND[7], embeddings_ND[7])
