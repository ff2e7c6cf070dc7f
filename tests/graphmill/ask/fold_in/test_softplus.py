"""Weighted sums of log(1 + exp(gap)): the compiled loops and torch's, against torch in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.fold_in import comparison


@pytest.mark.parametrize("is_compiled", [True, False])
@given(
    num_ids=st.integers(1, 5),
    num_queries=st.integers(1, 70),
    shift=st.sampled_from([-1000.0, -90.0, -15.0, 0.0, 15.0, 79.0, 1000.0]),
    temperature=st.sampled_from([1.0, 3.0]),
    seed=st.integers(0, 2**32),
)
def test_sums_and_slopes(
    is_compiled: bool, num_ids: int, num_queries: int, shift: float, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    offset, weight = rng.normal(size=num_queries), rng.uniform(0, 100, num_queries)
    score = temperature * (shift + 4 * rng.normal(size=(num_ids, num_queries)))
    score_BQ, offset_Q, weight_Q = (
        torch.from_numpy(each.astype(np.float32)) for each in (score, offset, weight)
    )
    gap = ((score_BQ.double() - offset_Q.double()) / temperature).clamp_max(80)
    odds = gap.exp()
    expected_B, slope_BQ = torch.log1p(odds) @ weight_Q.double(), odds / (1 + odds) * weight_Q
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(comparison, "library", lambda: None)
        elif comparison.library() is None:
            pytest.skip("no compiler")
        loss_B, found_BQ = comparison.weighted_softplus(score_BQ.clone(), offset_Q, weight_Q, temperature)
        apart_B, _ = comparison.weighted_softplus(score_BQ[-1:].clone(), offset_Q, weight_Q, temperature)
    # A gap of 80 has an error of 4e-6, which its exp has too; below -87 all is 0.
    assert torch.allclose(loss_B.double(), expected_B, rtol=2e-5, atol=1e-30)
    assert torch.allclose(found_BQ.double(), slope_BQ.double(), rtol=2e-5, atol=1e-30)
    if is_compiled:
        assert apart_B[0] == loss_B[-1]
