"""The entity index, counts and names: reader(writer(x)) = x, raw pyarrow, files of PBG, and damaged files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.entity_index import Manifest
from tests import DATA

PART = "entity_index/user/part-00002.parquet"
IDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30)


def _write(folder: str, *appends: list[str | None]) -> None:
    with entity_index.new_part(folder, "user", 2) as writer:
        for ids in appends:
            writer.append(pa.array(ids, pa.string()))


@given(appends=st.lists(IDS, max_size=4), batch_rows=st.integers(1, 70))
def test_ids_come_back(tmp_path: Path, appends: list[list[str]], batch_rows: int) -> None:
    folder = str(tmp_path)
    ids = [each for some in appends for each in some]
    _write(folder, *appends)
    batches = list(entity_index.iter_part(folder, "user", 2, batch_rows))
    assert [each for batch in batches for each in batch.to_pylist()] == ids
    assert all(0 < len(batch) <= batch_rows for batch in batches)
    assert entity_index.read_part(folder, "user", 2).to_pylist() == ids
    assert entity_index.count_part(folder, "user", 2) == len(ids)


def test_pyarrow_reads_the_file(tmp_path: Path) -> None:
    _write(str(tmp_path), ["a", "ß"], [], ["c"])
    table = pq.read_table(tmp_path / PART)
    assert table.column_names == ["id", "index"]
    assert [field.type for field in table.schema] == [pa.string(), pa.int64()]
    assert table.to_pydict() == {"id": ["a", "ß", "c"], "index": [0, 1, 2]}
    metadata = pq.ParquetFile(tmp_path / PART).metadata
    assert metadata.num_row_groups == 2
    ids, index = (metadata.row_group(0).column(number) for number in range(2))
    assert ids.compression == index.compression == "ZSTD"
    assert "PLAIN" in ids.encodings
    assert "DELTA_BINARY_PACKED" in index.encodings


def test_null_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"part-00002\.parquet: the raw id of row 3 is null"):
        _write(str(tmp_path), ["a", "b"], ["c", None])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "b"], "index": [0, 2]}, "expected index 1 in row 1, found 2"),
        ({"id": ["a", "b"], "index": [1, 0]}, "expected index 0 in row 0, found 1"),
        ({"id": ["a", None], "index": [0, 1]}, "expected no nulls"),
        ({"id": ["a", "b"], "index": [0, None]}, "expected no nulls"),
        ({"id": ["a", "b"]}, "column 'index': expected int64 or int32, found no such column"),
        ({"id": [1, 2], "index": [0, 1]}, "column 'id': expected string or large_string, found int64"),
        ({"id": ["a", "b"], "index": ["0", "1"]}, "column 'index': expected int64 or int32, found string"),
    ],
)
def test_reader_refuses(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    (tmp_path / PART).parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / PART, row_group_size=1)
    with pytest.raises(FormatError, match=rf"part-00002\.parquet: .*{message}"):
        list(entity_index.iter_part(str(tmp_path), "user", 2))


def test_truncated_or_damaged_file(tmp_path: Path) -> None:
    _write(str(tmp_path), [str(row) for row in range(1000)])
    whole = (tmp_path / PART).read_bytes()
    damaged = bytearray(whole)
    damaged[30:60] = bytes(30)
    for content in (b"", whole[:100], whole[:-1], bytes(damaged)):
        (tmp_path / PART).write_bytes(content)
        with pytest.raises(FormatError, match=r"part-00002\.parquet: expected a parquet file"):
            list(entity_index.iter_part(str(tmp_path), "user", 2))
    (tmp_path / PART).unlink()
    with pytest.raises(NotFoundError, match=r"user/part-00002\.parquet"):
        list(entity_index.iter_part(str(tmp_path), "user", 2))


def test_raw_ids_that_are_not_utf8(tmp_path: Path) -> None:
    _write(str(tmp_path), ["abcdef"])
    # Uncompressed by somebody else's hand, so that the text can be changed where it stands.
    pq.write_table(pq.read_table(tmp_path / PART), tmp_path / PART, compression="none", use_dictionary=False)
    content = (tmp_path / PART).read_bytes().replace(b"abcdef", b"abc\xff\xfef")
    (tmp_path / PART).write_bytes(content)
    with pytest.raises(FormatError, match=r"part-00002\.parquet: .*UTF8"):
        list(entity_index.iter_part(str(tmp_path), "user", 2))


def test_manifest_comes_back(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"manifest\.json"):
        entity_index.read_manifest(str(tmp_path))
    manifest = Manifest(hash_name="blake2b", seed=7, num_partitions={"user": 4, "item": 1})
    entity_index.write_manifest(str(tmp_path), manifest)
    assert entity_index.read_manifest(str(tmp_path)) == manifest
    assert json.loads((tmp_path / "entity_index/manifest.json").read_text())["format_version"] == 1


GOOD = {"format_version": 1, "hash_name": "h", "seed": 0, "num_partitions": {"user": 1}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a JSON object, found something else"),
        ("[]", "expected a JSON object, found list"),
        ("[" * 200_000, "expected a JSON object, found lists or objects nested too deep"),
        ("{}", "format_version is None; this reader knows 1"),
        (json.dumps(GOOD | {"format_version": 2}), "format_version is 2; this reader knows 1"),
        (json.dumps(GOOD | {"seed": "0"}), "seed"),
        (json.dumps(GOOD | {"num_partitions": []}), "num_partitions"),
        (json.dumps(GOOD | {"num_partitions": {"user": 0}}), "num_partitions: user: .* found 0"),
        (json.dumps(GOOD | {"num_partitions": {"user": True}}), "num_partitions: user: .* found True"),
        (json.dumps(GOOD | {"num_partitions": {"../user": 1}}), "num_partitions: .* found '../user'"),
    ],
)
def test_manifest_that_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "entity_index").mkdir()
    (tmp_path / "entity_index/manifest.json").write_text(content)
    with pytest.raises(FormatError, match=rf"manifest\.json: .*{message}"):
        entity_index.read_manifest(str(tmp_path))


# Lone surrogates cannot be written as UTF-8, and come from no table.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_counts_of_all_types(tmp_path: Path) -> None:
    for partition, count in enumerate([5, 0, 2**40]):
        entity_counts.write_count(str(tmp_path), "user", partition, count)
        assert (tmp_path / f"entity_count_user_{partition}.txt").read_text() == f"{count}\n"
    entity_counts.write_count(str(tmp_path), "item", 0, 2)
    found = entity_counts.read_counts(str(tmp_path), {"user": 3, "item": 1})
    assert found == {"user": [5, 0, 2**40], "item": [2]}
    with pytest.raises(NotFoundError, match=r"entity_count_item_1\.txt"):
        entity_counts.read_counts(str(tmp_path), {"item": 2})
    (tmp_path / f"entity_count_user_{10**12}.txt").touch()  # as many numbers are not looked through
    with pytest.raises(FormatError, match=r"entity_count_user_3\.txt: expected the file of this partition"):
        entity_counts.list_counts(str(tmp_path))


def test_spellings_of_counts(tmp_path: Path) -> None:
    path = tmp_path / "entity_count_user_0.txt"
    for content in (b"12", b"12\n", b" 12 \r\n", b"+12"):
        path.write_bytes(content)
        assert entity_counts.read_count(str(tmp_path), "user", 0) == 12
    bad = (b"", b"\n", b"twelve", b"-1", b"1.5", b"1_000", b"1 2", b"\xff", "١٢".encode(), b"9" * 5000)
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"entity_count_user_0\.txt: expected one integer"):
            entity_counts.read_count(str(tmp_path), "user", 0)


@given(names=st.lists(TEXT))
def test_names_come_back(tmp_path: Path, names: list[str]) -> None:
    entity_counts.write_entity_names(str(tmp_path), "user", 0, iter(names))
    assert entity_counts.read_entity_names(str(tmp_path), "user", 0) == names
    written = (tmp_path / "entity_names_user_0.json").read_text()
    assert written == json.dumps(names)  # PBG's reader is json.load


def test_names_beyond_one_flush(tmp_path: Path) -> None:
    names = [f"{number:>100}" for number in range(30_000)]
    entity_counts.write_entity_names(str(tmp_path), "user", 0, names)
    assert json.loads((tmp_path / "entity_names_user_0.json").read_text()) == names


def test_names_that_are_no_list_of_strings(tmp_path: Path) -> None:
    assert entity_counts.read_relation_names(str(tmp_path)) is None
    for content in (b"", b"{}", b'["a", 1]', b'["a"', b'["\xff"]', rb'["\ud800"]', b"[" * 100_000):
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
