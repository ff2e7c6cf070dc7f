"""Distinct strings: the hash table's way and the sorter's give the same, whatever the hash."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl import distinct, hashing

# How many values the hash has, and in which bits.
HASHES: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda hashes: hashes,
    "few values": lambda hashes: hashes % np.uint64(3) << np.uint64(62),
    "low bits only": lambda hashes: hashes % np.uint64(5),
    "none": lambda hashes: hashes * np.uint64(0),
}


def check(found: distinct.Distinct, texts: list[str], seed: int) -> None:
    names = found.strings.to_pylist()
    assert [names[code] for code in found.code_N] == texts
    assert found.hashes.tolist() == [int(each) for each in hashing.hash_strings(found.strings, seed)]
    keys = list(zip(found.hashes.tolist(), [name.encode() for name in names], strict=True))
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("kind", HASHES)
@given(texts=st.lists(st.text("ab€\0", max_size=3), max_size=30), cut=st.integers(0, 30))
def test_both_ways(kind: str, texts: list[str], cut: int) -> None:
    really = hashing.hash_strings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_strings", lambda strings, seed: HASHES[kind](really(strings, seed)))
        patch.setattr(distinct, "_SAMPLE_DISTINCT", -1)
        for few_rows in (1 << 20, 0):  # the table's way, the sorter's
            patch.setattr(distinct, "_FEW_ROWS", few_rows)
            column = pa.chunked_array([texts[:cut], texts[cut:]], pa.string())
            check(distinct.distinct(column, 7), texts, 7)


def test_many_strings(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    texts = [f"id-{n}" for n in rng.integers(0, 15_000, 20_000)]
    column = pa.chunked_array([texts], pa.large_string())
    by_table = distinct.distinct(column, 3)
    check(by_table, texts, 3)
    monkeypatch.setattr(distinct, "_FEW_ROWS", 15_000)
    monkeypatch.setattr(distinct, "_SAMPLE_ROWS", 5_000)
    monkeypatch.setattr(distinct, "_COMPARED_ROWS", 999)
    monkeypatch.setattr(distinct, "_by_dictionary", lambda *_: pytest.fail("the sorter was not taken"))
    by_sorting = distinct.distinct(column, 3)
    assert by_sorting.strings.equals(by_table.strings)
    assert by_sorting.code_N.tolist() == by_table.code_N.tolist()
