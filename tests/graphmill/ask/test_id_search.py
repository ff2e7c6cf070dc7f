"""Raw ids found among batches of others, and strings looked up in compiled loops."""

from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask import ids
from graphmill.ask.ids import IdSearch, Texts
from graphmill.formats.murmur import hash_strings

TEXTS = st.text(alphabet="abß", max_size=3)


def found(wanted: list[str], batch: list[str]) -> list[tuple[int, int]]:
    """Place among the wanted and row in the batch of all that are equal; both are slices."""
    sliced = [pa.array(["a", *each, "b"], pa.string()).slice(1, len(each)) for each in (wanted, batch)]
    places, rows = IdSearch(sliced[0]).among(sliced[1])
    assert rows.tolist() == sorted(rows.tolist())
    return sorted(zip(places.tolist(), rows.tolist(), strict=True))


def expected(wanted: list[str], batch: list[str]) -> list[tuple[int, int]]:
    places, rows = range(len(wanted)), range(len(batch))
    return [pair for pair in product(places, rows) if wanted[pair[0]] == batch[pair[1]]]


@given(wanted=st.lists(TEXTS), batch=st.lists(TEXTS), is_sorted=st.booleans())
def test_finds_all_pairs(wanted: list[str], batch: list[str], is_sorted: bool) -> None:
    if is_sorted:
        order = np.argsort(hash_strings(pa.array(batch, pa.string()), 0)).tolist()
        batch = [batch[place] for place in order]
    assert found(wanted, batch) == expected(wanted, batch)


@given(wanted=st.lists(TEXTS), batch=st.lists(TEXTS))
def test_ids_with_one_hash_are_told_apart(wanted: list[str], batch: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "hash_strings", lambda ids, seed: hash_strings(ids, seed) % np.uint64(2))
        assert found(wanted, batch) == expected(wanted, batch)


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
def test_strings_are_taken(dtype, strings, numbers, seed, max_bytes):
    place = np.random.default_rng(seed).permutation(len(strings)) + 1
    wanted = [number % len(strings) for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "MAX_BYTES", max_bytes)
        in_strides = np.repeat(np.array(wanted, np.int64), 2)[::2]
        found = make(strings, place.astype(dtype)).take(in_strides)
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
