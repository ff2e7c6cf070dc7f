"""Counts and names: reader(writer(x)) = x, files of PBG, and damaged files."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts
from tests import DATA

# Lone surrogates cannot be written as UTF-8, and come from no table.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(count=st.integers(0, 2**40))
def test_count_comes_back(tmp_path_factory: pytest.TempPathFactory, count: int) -> None:
    folder = str(tmp_path_factory.getbasetemp() / "counts")
    entity_counts.write_count(folder, "user", 3, count)
    assert entity_counts.read_count(folder, "user", 3) == count
    assert int((Path(folder) / "entity_count_user_3.txt").read_text()) == count


def test_counts_of_all_types(tmp_path: Path) -> None:
    for partition, count in enumerate([5, 0, 7]):
        entity_counts.write_count(str(tmp_path), "user", partition, count)
    entity_counts.write_count(str(tmp_path), "item", 0, 2)
    found = entity_counts.read_counts(str(tmp_path), {"user": 3, "item": 1})
    assert found == {"user": [5, 0, 7], "item": [2]}


@pytest.mark.parametrize("content", [b"12", b"12\n", b" 12 \r\n", b"+12"])
def test_accepted_spellings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "entity_count_user_0.txt").write_bytes(content)
    assert entity_counts.read_count(str(tmp_path), "user", 0) == 12


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"twelve", b"-1", b"1.5", b"1_000", b"1 2", b"\xff", "١٢".encode(), b"9" * 5000]
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "entity_count_user_0.txt").write_bytes(content)
    with pytest.raises(FormatError, match=r"entity_count_user_0\.txt: expected one integer"):
        entity_counts.read_count(str(tmp_path), "user", 0)


def test_missing_count_is_named(tmp_path: Path) -> None:
    entity_counts.write_count(str(tmp_path), "user", 0, 1)
    with pytest.raises(NotFoundError, match=r"entity_count_user_1\.txt"):
        entity_counts.read_counts(str(tmp_path), {"user": 2})


@given(names=st.lists(TEXT))
def test_names_come_back(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = str(tmp_path_factory.getbasetemp() / "names")
    entity_counts.write_entity_names(folder, "user", 0, iter(names))
    assert entity_counts.read_entity_names(folder, "user", 0) == names
    written = (Path(folder) / "entity_names_user_0.json").read_text()
    assert written == json.dumps(names)  # PBG's reader is json.load


def test_names_beyond_one_flush(tmp_path: Path) -> None:
    names = [f"{number:>100}" for number in range(30_000)]
    entity_counts.write_entity_names(str(tmp_path), "user", 0, names)
    assert json.loads((tmp_path / "entity_names_user_0.json").read_text()) == names


def test_relations(tmp_path: Path) -> None:
    assert entity_counts.read_relation_names(str(tmp_path)) is None
    entity_counts.write_relation_count(str(tmp_path), 2)
    entity_counts.write_relation_names(str(tmp_path), ["likes", "größer"])
    assert entity_counts.read_relation_count(str(tmp_path)) == 2
    assert entity_counts.read_relation_names(str(tmp_path)) == ["likes", "größer"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'["a", 1]', b'["a"', b'["\xff"]', rb'["\ud800"]', b"[" * 100_000]
)
def test_names_that_are_no_list_of_strings(tmp_path: Path, content: bytes) -> None:
    storage.write_text(str(tmp_path / "dynamic_rel_names.json"), "")
    (tmp_path / "dynamic_rel_names.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"dynamic_rel_names\.json: expected"):
        entity_counts.read_relation_names(str(tmp_path))


@pytest.mark.parametrize(("graph", "counts"), [("pbg_v1_dyn", [135]), ("pbg_v1_static", [68, 67])])
def test_files_that_pbg_wrote(graph: str, counts: list[int]) -> None:
    folder = str(DATA / graph / "entities")
    assert entity_counts.read_counts(folder, {"concept": len(counts)}) == {"concept": counts}
    names = [entity_counts.read_entity_names(folder, "concept", part) for part in range(len(counts))]
    assert [len(each) for each in names] == counts
    assert len(set().union(*names)) == 135
    assert entity_counts.read_relation_names(folder)
    if graph == "pbg_v1_dyn":
        assert entity_counts.read_relation_count(folder) == 46
