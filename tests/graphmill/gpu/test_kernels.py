"""The kernels compute what their reference computes; whole numbers have exact scores, of which many tie."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmill.gpu import reference
from graphmill.gpu.reference import TILE

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from graphmill.gpu import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FEW = settings(max_examples=4)
SHAPES = {
    "dimension": st.integers(1, 140),
    "num_queries": st.integers(1, 150),
    "num_rows": st.integers(1, 400),
    "seed": st.integers(0, 1000),
}


def numbers(generator: torch.Generator, below: int, count: int) -> Tensor:
    return torch.randint(below, (count,), generator=generator).to(DEVICE)


@FEW
@given(**SHAPES)
@example(dimension=9, num_queries=9, num_rows=1, seed=1)  # scores below 0 in a tile that is not full
def test_counts_and_tiles(dimension: int, num_queries: int, num_rows: int, seed: int) -> None:
    check(dimension, num_queries, num_rows, seed)


def test_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SPAN", 2)
    check(20, 140, 3 * TILE + 100, seed=1)


def check(dimension: int, num_queries: int, num_rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query_QD, table_ND = (
        torch.randint(-2, 3, (rows, dimension), generator=generator).float().to(DEVICE)
        for rows in (num_queries, num_rows)
    )
    row_Q, query_Q = numbers(generator, num_rows, num_queries), torch.arange(num_queries, device=DEVICE)
    score_Q = kernels.pair_scores(query_QD, table_ND, query_Q, row_Q)
    assert torch.equal(score_Q, reference.pair_scores(query_QD, table_ND, query_Q, row_Q))
    found = kernels.count_above(query_QD, table_ND, score_Q)
    for each, wanted in zip(found, reference.count_above(query_QD, table_ND, score_Q), strict=True):
        assert torch.equal(each, wanted)
    maxima_QT = kernels.tile_maxima(query_QD, table_ND)
    assert torch.equal(maxima_QT, reference.tile_maxima(query_QD, table_ND))
    pairs = numbers(generator, num_queries, 9), numbers(generator, maxima_QT.shape[1], 9)
    score_PB = kernels.tile_scores(query_QD, table_ND, *pairs)
    assert torch.equal(score_PB, reference.tile_scores(query_QD, table_ND, *pairs))
    assert torch.equal(score_PB.amax(1), maxima_QT[pairs])


@FEW
@given(dimension=st.integers(1, 300), size=st.floats(1e-6, 1e6), seed=st.integers(0, 1000))
def test_scores_have_nearly_the_precision_of_float32(dimension: int, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query_QD, table_ND = (
        (size * torch.randn(rows, dimension, generator=generator)).to(DEVICE) for rows in (20, 40)
    )
    row_P = numbers(generator, 40, 20)
    query_P = torch.arange(20, device=DEVICE)
    exact_P = reference.pair_scores(query_QD.double(), table_ND.double(), query_P, row_P)
    found_P = kernels.pair_scores(query_QD, table_ND, query_P, row_P)
    norms_P = query_QD.double().norm(dim=1) * table_ND[row_P].double().norm(dim=1)
    assert ((found_P - exact_P).abs() <= 2.0**-19 * norms_P).all()


def test_no_rows_and_no_queries() -> None:
    query_QD, table_ND = torch.ones(3, 4, device=DEVICE), torch.ones(5, 4, device=DEVICE)
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    for module in (kernels, reference):
        assert module.count_above(query_QD[:0], table_ND, query_QD[:0, 0])[0].tolist() == []
        assert module.count_above(query_QD, table_ND[:0], query_QD[:, 0])[1].tolist() == [0, 0, 0]
        assert module.tile_maxima(query_QD, table_ND[:0]).shape == (3, 0)
        assert module.tile_scores(query_QD, table_ND, none, none).shape == (0, TILE)
        assert module.pair_scores(query_QD, table_ND, none, none).shape == (0,)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies by numpy, which rounds by place")
def test_a_row_ties_with_itself_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    query_QD, table_ND = (torch.randn(rows, 100, generator=generator).to(DEVICE) for rows in (50, 300))
    row_Q = numbers(generator, 300, 50)
    score_Q = kernels.pair_scores(query_QD, table_ND, torch.arange(50, device=DEVICE), row_Q)
    _, equal_Q = kernels.count_above(query_QD, table_ND, score_Q)
    assert (equal_Q == 1).all()
    tile_P = torch.arange(5, device=DEVICE)
    score_PB = kernels.tile_scores(query_QD, table_ND.repeat(2, 1), 0 * tile_P, tile_P)
    assert torch.equal(score_PB.flatten()[:300], score_PB.flatten()[300:600])
