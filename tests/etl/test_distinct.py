"""Distinct strings: right whatever the hash, the table's size and the way in which the strings lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl import distinct, hashing, string_table
from etl.text import text_of

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
@given(texts=st.lists(st.text("ab€\0", max_size=20), max_size=30), cut=st.integers(0, 30))
def test_whatever_the_hash(kind: str, texts: list[str], cut: int) -> None:
    really = hashing.hash_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_text", lambda text, seed: HASHES[kind](really(text, seed)))
        column = pa.chunked_array([texts[:cut], texts[cut:]], pa.string())
        check(distinct.distinct(column, 7), texts, 7)


@pytest.mark.parametrize("num_distinct", [1, 300, 32_000, 150_000])
def test_many_strings(num_distinct: int, rng: np.random.Generator) -> None:
    """The table grows as it fills: at 32,512 strings, and at four times as many."""
    texts = [f"id-{n}" for n in rng.integers(0, num_distinct, 200_000)]
    column = pa.chunked_array([texts[:70_000], texts[70_000:]], pa.large_string())
    found = distinct.distinct(column, 3)
    encoded = pa.array(texts, pa.large_string()).dictionary_encode()
    assert sorted(found.strings.to_pylist()) == sorted(encoded.dictionary.to_pylist())
    assert found.strings.take(pa.array(found.code_N)).to_pylist() == texts
    assert (np.diff(found.hashes.astype(object)) > 0).all()


def test_strings_that_share_a_prefix_and_a_hash() -> None:
    texts = [prefix + "x" * n for n in range(40) for prefix in ("", "same beginning ", "same beginning\0")]
    column = pa.array(texts * 5)
    hashes = np.zeros(len(column), np.uint64)
    code_N, first_D = string_table.number_strings(text_of(column), hashes)
    assert len(first_D) == len(set(texts))
    assert [texts[first_D[code] % len(texts)] for code in code_N] == texts * 5
