"""Strings looked up in compiled loops are pyarrow's."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.strings import ids
from graphmill.ask.strings.ids import Texts


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(ids, "library", lambda: None)
    elif ids.library() is None:
        pytest.skip("no C++ compiler")


def make(strings: list[str], place: npt.NDArray[np.integer]) -> Texts:
    """`place` is a permutation of the rows, counted from 1."""
    encoded = [each.encode() for each in strings]
    offsets = np.cumsum([0, *map(len, encoded)])
    return Texts(place, offsets, np.frombuffer(b"".join(encoded), np.uint8))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@given(
    strings=st.lists(st.text(max_size=40), min_size=1, max_size=30),
    numbers=st.lists(st.integers(0, 1 << 30), max_size=700),
    seed=st.integers(0, 99),
    max_bytes=st.sampled_from([1, 100, 1 << 31]),
)
def test_strings_are_taken(
    dtype: type[np.integer], strings: list[str], numbers: list[int], seed: int, max_bytes: int
) -> None:
    place = np.random.default_rng(seed).permutation(len(strings)) + 1
    wanted = [number % len(strings) for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "MAX_BYTES", max_bytes)
        found = make(strings, place.astype(dtype)).take(np.array(wanted, np.int64))
    found.validate(full=True)
    assert found.type == pa.string()
    assert found.to_pylist() == [strings[place[number] - 1] for number in wanted]


def test_many_of_them(rng: np.random.Generator) -> None:
    """More strings than a loop takes at once, shorter and longer than one copy."""
    strings = ["x" * int(length) + str(row) for row, length in enumerate(rng.integers(0, 60, 5000))]
    place = rng.permutation(5000).astype(np.uint32) + np.uint32(1)
    numbers = rng.integers(0, 5000, 100_000)
    found = make(strings, place).take(numbers)
    expected = pa.array(strings).take(pa.array(place[numbers] - 1))
    assert found.combine_chunks().equals(expected)


def test_numbers_in_strides() -> None:
    found = make(["a", "b", "c"], np.arange(1, 4, dtype=np.uint32)).take(np.array([0, 9, 1, 9, 2])[::2])
    assert found.to_pylist() == ["a", "b", "c"]
