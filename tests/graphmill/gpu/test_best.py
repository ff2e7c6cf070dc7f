"""The best candidates equal those of a stable sort of all scores: ties, pairs left out, any slices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.gpu.best import BestOnDevice, highest
from graphmill.gpu.reference import TILE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@settings(max_examples=60)
@given(data=st.data())
def test_best(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    num_queries, num_rows, k = (data.draw(st.integers(1, most)) for most in (9, 5 * TILE, 300))
    largest = data.draw(st.sampled_from((0, 1, 5, 1000)))  # numbers are whole, so scores are exact
    query_QD, table_ND = (
        rng.integers(-largest, largest + 1, (rows, 3)).astype(np.float32) for rows in (num_queries, num_rows)
    )
    is_left_out_QN = rng.random((num_queries, num_rows)) < data.draw(st.sampled_from((0, 0.01, 0.5, 1)))
    cuts = sorted(data.draw(st.lists(st.integers(0, num_rows), max_size=3)))
    cells = data.draw(st.sampled_from((TILE, 1 << 20)))
    best = BestOnDevice(torch.from_numpy(query_QD).to(DEVICE), k, cells=cells)
    for start, stop in zip([0, *cuts], [*cuts, num_rows], strict=True):
        query_L, row_L = torch.from_numpy(is_left_out_QN[:, start:stop]).to(DEVICE).nonzero().T.contiguous()
        best.add(torch.from_numpy(table_ND[start:stop]).to(DEVICE), 7 + start, query_L, row_L)
    score_QN = np.where(is_left_out_QN, -np.inf, query_QD @ table_ND.T)
    for query, score_N in enumerate(score_QN):
        wanted = [row for row in np.argsort(-score_N, kind="stable")[:k] if np.isfinite(score_N[row])]
        assert best.row_QK[query, : len(wanted)].tolist() == [7 + row for row in wanted]
        assert best.score_QK[query, : len(wanted)].tolist() == score_N[wanted].tolist()
        assert (best.score_QK[query, len(wanted) :] == -torch.inf).all()


@pytest.mark.parametrize("k", [1, 40, 900])
def test_highest_keeps_the_order_of_equal_numbers(k: int) -> None:
    rng = np.random.default_rng(k)
    score_QM = rng.choice(np.array([-np.inf, -2.5, -0.0, 0.0, 1e-40, 3.0, np.inf], np.float32), (6, 900))
    score_QM[5] = rng.standard_normal(900)
    wanted = np.argsort(-score_QM, axis=1, kind="stable")[:, :k]
    assert highest(torch.from_numpy(score_QM).to(DEVICE), k).tolist() == wanted.tolist()
