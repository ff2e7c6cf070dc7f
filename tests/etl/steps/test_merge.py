"""Duplicates: found exactly, for any memory; the first of equal edges stays."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etl.steps.left_out import first_of_equals

EDGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=50)


@given(edges=EDGES, cut=st.integers(0, 50), budget=st.integers(0, 60))
def test_the_first_of_equal_edges_stays(edges: list[tuple[int, int, int]], cut: int, budget: int) -> None:
    records = np.array(edges, np.int32).reshape(-1, 3)

    def read() -> Iterator[np.ndarray]:
        yield records[:cut]
        yield records[cut:]

    keep = first_of_equals(read, len(edges), budget)
    assert keep.tolist() == [edge not in edges[:row] for row, edge in enumerate(edges)]
