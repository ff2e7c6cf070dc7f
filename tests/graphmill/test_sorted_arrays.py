"""Sets of numbers as sorted arrays: as Python's sets have them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.sorted_arrays import contains, distinct, positions

NUMBERS = st.lists(st.integers(0, 30), max_size=40)


@pytest.mark.parametrize("overwrite", [False, True])
@given(values=NUMBERS)
def test_distinct_numbers_ascend(values: list[int], overwrite: bool) -> None:
    given_numbers = np.array(values, np.uint64)
    assert distinct(given_numbers, overwrite=overwrite).tolist() == sorted(set(values))
    assert overwrite or given_numbers.tolist() == values


@given(values=NUMBERS, wanted=NUMBERS)
def test_places_are_those_of_the_numbers(values: list[int], wanted: list[int]) -> None:
    ascending = sorted(set(values))
    numbers, sought = np.array(ascending, np.int64), np.array(wanted, np.int64)
    expected = [ascending.index(each) if each in ascending else -1 for each in wanted]
    assert positions(numbers, sought).tolist() == expected
    assert contains(numbers, sought).tolist() == [place >= 0 for place in expected]
