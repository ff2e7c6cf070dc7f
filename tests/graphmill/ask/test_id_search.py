"""Raw ids found among batches of others."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.strings import ids as id_search
from graphmill.ask.strings.ids import IdSearch
from graphmill.formats.murmur import hash_strings

TEXTS = st.text(alphabet="abß", max_size=3)


def found(wanted: list[str], batch: list[str]) -> list[tuple[int, int]]:
    """Place among the wanted and row in the batch of all that are equal."""
    places, rows = IdSearch(pa.array(wanted, pa.string())).among(pa.array(batch, pa.string()))
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
        patch.setattr(id_search, "hash_strings", lambda ids, seed: hash_strings(ids, seed) % np.uint64(2))
        assert found(wanted, batch) == expected(wanted, batch)


def test_batches_may_be_slices() -> None:
    names = pa.array([f"id{number}" for number in range(100)])
    places, rows = IdSearch(names.slice(40, 20)).among(names.slice(50, 50))
    assert sorted(zip(places.tolist(), rows.tolist(), strict=True)) == [(10 + n, n) for n in range(10)]
