"""The nearest rows are those of a stable sort of all scores, however the rows are cut into parts."""

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.nearest import nearest

SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), float("-inf")])


@given(
    st.lists(st.tuples(SCORES, SCORES), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.integers(1, 8),
    st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
)
def test_equal_rows_stand_in_their_order(rows, cuts, k, own) -> None:
    """Some ids are there twice: none of their rows is an answer to the id itself."""
    score_NQ = np.array(rows, np.float32).reshape(-1, 2)
    names = [f"id{row % 20}" for row in range(len(rows))]
    leave_out = [None if each is None else f"id{each}" for each in own]
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [
        (pa.array(names[start:stop], pa.string()), score_NQ[start:stop])
        for start, stop in itertools.pairwise(bounds)
    ]
    found = nearest(iter(parts), lambda vectors_ND: vectors_ND, leave_out, k)
    for query, neighbors in enumerate(found):
        order = np.argsort(-score_NQ[:, query], kind="stable")
        allowed = [
            row for row in order if np.isfinite(score_NQ[row, query]) and names[row] != leave_out[query]
        ]
        assert [each.id for each in neighbors] == [names[row] for row in allowed[:k]]
        assert [each.similarity for each in neighbors] == score_NQ[allowed[:k], query].tolist()
