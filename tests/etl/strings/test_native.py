"""Compiled loops give the results of numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.strings import native
from etl.strings.native import NOWHERE, count, group, take


@pytest.fixture(params=[True, False], ids=["compiled", "plain"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "library", lambda: None)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
@given(places=st.lists(st.integers(-1, 6), max_size=30))
def test_values_are_taken(dtype: type[np.generic], places: list[int]) -> None:
    values = np.arange(7).astype(dtype) * dtype(3)
    found = take(values, np.array(places, np.int32))
    assert found.dtype == dtype
    assert found.tolist() == values[np.array(places, int)].tolist()


@given(places=st.lists(st.integers(0, 6), max_size=30))
def test_places_are_counted(places: list[int]) -> None:
    assert count(np.array(places, np.int32), 8).tolist() == [places.count(n) for n in range(8)]


@given(
    groups=st.lists(st.integers(NOWHERE, 4), max_size=30),
    heads=st.none() | st.lists(st.integers(0, 4), max_size=10).map(sorted),
)
def test_rows_are_grouped_behind_their_heads(groups: list[int], heads: list[int] | None) -> None:
    columns = [np.arange(len(groups), dtype=np.int32), np.arange(len(groups), dtype=np.int32) * 3]
    given_heads = None
    if heads is not None:
        given_heads = np.array([(each, -1 - n, 7) for n, each in enumerate(heads)], np.int32).reshape(-1, 3)
    starts, records = group(columns, np.array(groups, np.int32), 5, given_heads)
    for number in range(5):
        before = [[-1 - n, 7] for n, each in enumerate(heads or []) if each == number]
        rows = [[row, 3 * row] for row, each in enumerate(groups) if each == number]
        assert records[starts[number] : starts[number + 1]].tolist() == before + rows
    assert starts[-1] == len(records)
