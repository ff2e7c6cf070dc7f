"""Duplicates and removed edges: found exactly, for any memory; the first of equal edges stays."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etl.steps.left_out import find_edges

Edge = tuple[int, int, int]
ROWS = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=20),
    ),
    max_size=6,
)


@given(pieces=ROWS, budget=st.integers(0, 60), drops=st.booleans())
def test_the_first_of_equal_edges_stays_unless_it_is_removed(
    pieces: list[tuple[bool, list[Edge]]], budget: int, drops: bool
) -> None:
    def read() -> Iterator[tuple[np.ndarray, bool]]:
        for removes, edges in pieces:
            yield np.array(edges, np.int32).reshape(-1, 3), removes

    expected: list[bool] = []
    live: list[tuple[int, Edge]] = []
    for removes, edges in pieces:
        for edge in edges:
            if removes:
                for place, other in live:
                    expected[place] &= other != edge
                live = [each for each in live if each[1] != edge]
            else:
                live.append((len(expected), edge))
                expected.append(True)
    if drops:
        for number, (place, edge) in enumerate(live):
            expected[place] = edge not in [other for _, other in live[:number]]
    num_rows = sum(len(edges) for _, edges in pieces)
    assert find_edges(read, num_rows, budget, drops=drops).tolist() == expected
