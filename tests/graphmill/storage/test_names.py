"""Names of files from any text."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.storage.named import MAX_BYTES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("name", ["knows", "is a", "größe", "a.b", "likes_it"])
def test_plain_names_stay(name: str) -> None:
    assert storage.file_name(name) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/people/person/nationality", "%2Fpeople%2Fperson%2Fnationality"),
        ("http://www.wikidata.org/prop/direct/P31", "http%3A%2F%2Fwww.wikidata.org%2Fprop%2Fdirect%2FP31"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("100%", "100%25"),
        ("a\tb", "a%09b"),
    ],
)
def test_what_files_cannot_have_is_encoded_as_in_urls(name: str, expected: str) -> None:
    assert storage.file_name(name) == expected


@given(TEXTS)
def test_any_name_lies_in_its_folder_and_can_be_read_back(name: str) -> None:
    encoded = storage.file_name(name)
    assert len(encoded.encode()) <= MAX_BYTES
    assert storage.join("/x", encoded) == f"/x/{encoded}"
    assert storage.within("/x", f"/x/{encoded}")
    assert not encoded.startswith(".")
    assert not set(encoded) & set("/\\:\0\n")
    assert "%~" in encoded or unquote(encoded) == name


@given(TEXTS, TEXTS)
def test_different_names_differ(one: str, other: str) -> None:
    longer = "/" * 40 + one, "/" * 40 + other
    assert (storage.file_name(one) == storage.file_name(other)) == (one == other)
    assert (storage.file_name(longer[0]) == storage.file_name(longer[1])) == (one == other)
