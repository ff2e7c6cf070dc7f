"""Distinct strings are right for any hash, size and layout; compiled loops give the results of numpy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.strings import native
from etl.strings.native import NOWHERE, count, group, take
from etl.strings.table import Distinct, distinct, new_table

# Which bits the hash has.
MASKS = {"all": (1 << 64) - 1, "the uppermost": 3 << 62, "none": 0}


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def table_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "plain":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler")
    return request.param


@pytest.fixture(params=MASKS)
def weak_hash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MASK", MASKS[request.param])


def check(found: Distinct, code_N: Any, texts: list[str], seed: int) -> None:
    names = found.strings.to_pylist()
    assert [names[code] for code in code_N] == texts
    assert found.hashes.tolist() == [int(each) for each in native.hash_strings(found.strings, seed)]
    keys = list(zip(found.hashes.tolist(), [name.encode() for name in names], strict=True))
    assert keys == sorted(set(keys))


@given(texts=st.lists(st.text("ab€\0", max_size=20), max_size=30), cut=st.integers(0, 30))
@example(texts=["12345678a", "12345678b"], cut=1)
def test_whatever_the_hash(weak_hash: None, texts: list[str], cut: int) -> None:
    column = pa.chunked_array([texts[:cut], texts[cut:]], pa.string())
    check(*distinct(column, 7), texts, 7)


@pytest.mark.parametrize("num_distinct", [1, 300, 150_000])
def test_many_strings(num_distinct: int, rng: np.random.Generator) -> None:
    """The table grows as it fills, from room for 32,768 strings on."""
    texts = [f"id-{n}" for n in rng.integers(0, num_distinct, 200_000)]
    column = pa.chunked_array([texts[:70_000], texts[70_000:]], pa.large_string())
    found, code_N = distinct(column, 3)
    encoded = pa.array(texts, pa.large_string()).dictionary_encode()
    assert sorted(found.strings.to_pylist()) == sorted(encoded.dictionary.to_pylist())
    assert found.strings.take(pa.array(code_N)).to_pylist() == texts
    assert (np.diff(found.hashes.astype(object)) > 0).all()


@given(
    rows=st.lists(st.tuples(st.text("ab", max_size=3), st.integers(0, 2)), max_size=40),
    cut=st.integers(0, 40),
)
def test_kinds_have_nothing_in_common(weak_hash: None, rows: list[tuple[str, int]], cut: int) -> None:
    table = new_table(5)
    codes = []
    for part in (rows[:cut], rows[cut:]):
        texts = pa.array([text for text, _ in part], pa.string())
        codes += table.number(texts, np.array([number for _, number in part], np.int32)).tolist()
    found, position_of = table.in_order(4)
    numbered = [
        (text, number) for number, of_kind in enumerate(found) for text in of_kind.strings.to_pylist()
    ]
    assert [numbered[position_of[code]] for code in codes] == rows
    assert sorted(numbered) == sorted(set(rows))
    assert len(found) == 4


@pytest.mark.slow
def test_long_strings(table_kind: str) -> None:
    """Longer than the table's first room for text, and growing past it while others lie before it."""
    size = 1 << (20 if table_kind == "compiled" else 14)  # the plain table has no rooms
    texts = ["a", "b" * size, "c", "b" * size + "d", "b" * (5 * size), "a"]
    column = pa.chunked_array([[text] for text in texts], pa.string())
    check(*distinct(column, 1), texts, 1)


def test_a_slice_of_strings() -> None:
    for kind in (pa.string(), pa.large_string()):
        strings = pa.array([f"id-{n % 7}" for n in range(100)], kind)[13:60]
        check(*distinct(pa.chunked_array([strings]), 2), strings.to_pylist(), 2)


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
