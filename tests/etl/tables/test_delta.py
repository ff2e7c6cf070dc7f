"""Tables of Delta Lake: written by delta-rs, and by hand as Spark writes them; read back by delta-rs."""

import datetime
import json
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from etl.tables.lake.delta import decoded
from etl.tables.lake.snapshot import Places
from graphmill.errors import FormatError, NotFoundError, RawTableError
from tests.etl.tables.lakes import (
    ROWS,
    TYPED,
    VALUES,
    check_pruning,
    deletion_vector,
    filters_on,
    found_in,
    read,
    rows_of,
    write_mapped_delta,
    z85,
)


def foreign_rows(path: Path, columns: list[str], version: int | None = None) -> list[tuple[Any, ...]]:
    """The rows as delta-rs itself reads them."""
    table = pa.table(DeltaTable(path, version=version).scan(columns))
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions: 0 three rows, 1 two rows more, 2 without b, 3 as 2 and compacted with removed files."""
    path = tmp_path / "lake/orders"
    write_deltalake(path, ROWS, partition_by=["day"])
    write_deltalake(path, ROWS.slice(1), mode="append")
    DeltaTable(path).delete("u = 'b'")
    DeltaTable(path).optimize.compact()
    return path


OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["append", "overwrite"]), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["compact", "checkpoint"]), st.none()),
)


@pytest.mark.slow
@hypothesis.settings(max_examples=20)
@given(st.lists(OPERATIONS, min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_any_history(tmp_path_factory, operations, is_partitioned, limit):
    """Every version has the rows that delta-rs reads, whole and filtered."""
    path = tmp_path_factory.mktemp("history")
    schema = pa.schema([("u", pa.string()), ("i", pa.string()), ("n", pa.int64())])
    write_deltalake(path, schema.empty_table(), partition_by=["n"] if is_partitioned else None)
    for operation, value in operations:
        table = DeltaTable(path)
        match operation:
            case "append" | "overwrite":
                columns = [[f"u{n}" for n in value], [f"i{n % 2}" for n in value], value]
                write_deltalake(path, pa.table(columns, schema=schema), mode=operation)
            case "delete":
                table.delete(f"n = {value}")
            case "update":
                table.update({"i": "'new'"}, predicate=f"u = 'u{value}'")
            case "compact":
                table.optimize.compact()
            case _:
                table.create_checkpoint()
    for version in range(DeltaTable(path).version() + 1):
        rows = foreign_rows(path, ["u", "i", "n"], version)
        assert rows_of(path, weight="n", snapshot=version) == rows
        found = rows_of(path, weight="n", snapshot=version, filters=[["n", ">=", limit]])
        assert found == [row for row in rows if row[2] >= limit]


def test_columns_that_came_later_are_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS.select(["u", "i"]))
    write_deltalake(tmp_path, ROWS.select(["u", "i", "n"]), mode="append", schema_mode="merge")
    rows, bad = read(tmp_path, rhs="n")
    assert rows == [("a", "1"), ("b", "2"), ("c", "3")]
    assert bad == [("rhs: null", row) for row in (1, 2, 3)]
    with pytest.raises(RawTableError, match=r"column 'm' \(rhs\), found columns \['u', 'i', 'n'\]"):
        rows_of(tmp_path, rhs="m")


def test_filters_prune_files_and_rows(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        ([["day", "==", "2026-11-01"]], 1, ["a"]),
        ([["day", "in", ["2026-11-01", "2026-11-02"]], ["n", ">", 1]], 1, ["c", "c"]),
        ([[["day", "<", "2026-11-02"]], [["u", "==", "c"]]], 2, ["a", "c", "c"]),
        ([["day", "!=", None], ["u", "!=", "a"]], 2, ["c", "c"]),
    ]
    check_pruning(table, cases, monkeypatch)


@pytest.mark.parametrize("partition", [None, *VALUES])
def test_filters_on_columns_of_all_types(tmp_path: Path, partition: str | None) -> None:
    parts = [TYPED] if partition else [TYPED.slice(n, 2) for n in (0, 2, 4)]  # own statistics
    for part in parts:
        write_deltalake(tmp_path, part, mode="append", partition_by=partition and [partition])
    for column in [partition] if partition else VALUES:
        for filters, expected in filters_on(column):
            if partition == "text":  # Hive folders cannot tell an empty text from null
                expected = [each for each in expected if each != "4"] + ["4"] * (filters[0][2] is None)
            assert [row[0] for row in rows_of(tmp_path, filters=filters)] == expected


def test_long_text_is_not_cut_as_its_statistics(tmp_path: Path) -> None:
    texts = ["a" * 5000, "a" * 4999 + "b", "\U0010ffff" * 3000]
    for text in texts:
        write_deltalake(tmp_path, pa.table({"u": ["1"], "i": ["x"], "text": [text]}), mode="append")
    for text in texts:
        assert len(rows_of(tmp_path, filters=[["text", "==", text]])) == 1
        assert len(rows_of(tmp_path, filters=[["text", ">=", text]])) == 3 - texts.index(text)


def test_a_time_is_not_cut_to_the_milliseconds_of_its_statistics(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 11, 1, 0, 0, 0, 1500, datetime.UTC)
    write_deltalake(tmp_path, pa.table({"u": ["a"], "i": ["x"], "at": [at]}))
    assert rows_of(tmp_path, filters=[["at", ">=", "2026-11-01 00:00:00.0015"]]) == [("a", "x")]
    assert rows_of(tmp_path, filters=[["at", ">", "2026-11-01 00:00:00.0015"]]) == []


ODD = ["d e", "d/e", "ä=%", "%41", "a:b", None]


def test_odd_values_of_partitions(tmp_path: Path) -> None:
    rows = pa.table({"u": [str(n) for n in range(len(ODD))], "i": ["x"] * len(ODD), "p": ODD})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    assert rows_of(tmp_path, rhs="p") == [(str(n), each) for n, each in enumerate(ODD) if each is not None]
    for number, each in enumerate(ODD):
        assert rows_of(tmp_path, filters=[["p", "==", each]]) == [(str(number), "x")]


FILES = {
    "one.parquet": pa.table({"c1": list("abcde"), "c2": [{"c3": f"x{n}"} for n in range(5)], "c4": range(5)}),
    "two.parquet": pa.table({"c1": list("fg"), "c2": [{"c3": "y"}, {"c3": "z"}]}),
}


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_column_mapping_and_deletion_vectors(tmp_path: Path, kind: str) -> None:
    write_mapped_delta(tmp_path, FILES, {"one.parquet": deletion_vector(tmp_path, [0, 3], kind)})
    scanned = pa.table(DeltaTable(tmp_path).scan(["u", "ev"])).to_pylist()
    expected = sorted((row["u"], row["ev"]["item"]) for row in scanned)
    assert [row[0] for row in expected] == list("bcefg")
    for chunk_rows in (1, 2, 1000):
        assert rows_of(tmp_path, chunk_rows, rhs="ev.item") == expected
    rows, bad = read(tmp_path, rhs="day", weight="n")
    assert rows == [(each, "2026-11-01", float("abcde".index(each))) for each in "bce"]
    assert bad == [("weight: null", 1), ("weight: null", 2)]
    assert rows_of(tmp_path, rhs="ev.item", filters=[["n", ">=", 2]]) == [("c", "x2"), ("e", "x4")]


def test_the_newest_deletion_vector_counts(tmp_path: Path) -> None:
    log, commits = tmp_path / "_delta_log", []
    for rows in ([0], [0, 3]):
        write_mapped_delta(tmp_path, FILES, {"one.parquet": deletion_vector(tmp_path, rows, "u")})
        commits.append((log / f"{0:020}.json").read_text().splitlines())
    old, new = (next(line for line in lines if "one.parquet" in line) for lines in commits)
    gone = json.loads(old)["add"]
    gone = {key: gone[key] for key in ("path", "deletionVector", "dataChange")} | {"deletionTimestamp": 1}
    (log / f"{0:020}.json").write_text("\n".join(commits[0]))
    (log / f"{1:020}.json").write_text("\n".join([json.dumps({"remove": gone}), new]))
    for version, ids in enumerate(("bcdefg", "bcefg")):
        assert "".join(row[0] for row in rows_of(tmp_path, rhs="ev.item", snapshot=version)) == ids


def test_a_checkpoint_in_parts(tmp_path: Path) -> None:
    """Version 2 of checkpoints: deletion vectors are in sidecars, beside those of other checkpoints."""
    log = tmp_path / "_delta_log"
    features = ["columnMapping", "deletionVectors", "v2Checkpoint"]
    dv_fields = {"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32()}
    dv_fields |= {"sizeInBytes": pa.int32(), "cardinality": pa.int64()}
    vectors = [{"one.parquet": deletion_vector(tmp_path, [row], "u")} for row in (0, 1, 2)]
    for version, vector in enumerate(vectors):
        write_mapped_delta(tmp_path, FILES, vector)
        lines = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
        lines[0]["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
        adds = [line["add"] for line in lines if "add" in line]
        (log / "_sidecars").mkdir(exist_ok=True)
        sidecar = log / f"_sidecars/{version}.parquet"
        removed = pa.nulls(2, pa.struct([("path", pa.string())]))
        rows = [each | {"partitionValues": list(each["partitionValues"].items())} for each in adds]
        schema = pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", pa.map_(pa.string(), pa.string())),
                *(("size", pa.int64()), ("modificationTime", pa.int64()), ("dataChange", pa.bool_())),
                *(("stats", pa.string()), ("deletionVector", pa.struct(dv_fields))),
            ]
        )
        pq.write_table(pa.table({"add": pa.array(rows, schema), "remove": removed}), sidecar)
        part = {"path": sidecar.name, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 1}
        top = [{"checkpointMetadata": {"version": version}}, *lines[:2], {"sidecar": part}]
        name = f"{version:020}.checkpoint.00000000-0000-0000-0000-00000000000{version}.json"
        (log / name).write_text("\n".join(map(json.dumps, top)))
        (log / f"{version:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1}}))
    for version in (0, 1, 2):
        scanned = pa.table(DeltaTable(tmp_path, version=version).scan(["u", "ev"])).to_pylist()
        expected = sorted((row["u"], row["ev"]["item"]) for row in scanned)
        assert "".join(row[0] for row in expected) == "abcdefg".replace("abc"[version], "")
        assert rows_of(tmp_path, rhs="ev.item", snapshot=version) == expected
    (log / "_sidecars/2.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"_sidecars/2\.parquet"):
        rows_of(tmp_path, rhs="ev.item")


def test_a_log_that_begins_with_a_checkpoint(table: Path) -> None:
    """Spark writes large ones into several files; one of which a file is missing counts for nothing."""
    log = table / "_delta_log"
    expected = {version: foreign_rows(table, ["u", "i"], version) for version in (None, 1, 2, 3)}
    DeltaTable(table, version=1).create_checkpoint()
    (log / f"{0:020}.json").rename(table / "first.json")
    assert {version: rows_of(table, snapshot=version) for version in expected} == expected
    assert len(list(table.rglob("part-*.parquet"))) > len(found_in(table).files())
    whole = log / f"{1:020}.checkpoint.parquet"
    rows = pq.read_table(whole)
    for number, part in enumerate([rows.slice(0, 2), rows.slice(2)], start=1):
        pq.write_table(part, log / f"{1:020}.checkpoint.{number:010}.{2:010}.parquet")
    whole.unlink()
    assert rows_of(table) == expected[None]
    (log / f"{1:020}.checkpoint.{2:010}.{2:010}.parquet").unlink()
    with pytest.raises(RawTableError, match=r"expected the commits 0 to 3 .*found none of version 0"):
        found_in(table)
    (table / "first.json").rename(log / f"{0:020}.json")
    assert {version: rows_of(table, snapshot=version) for version in expected} == expected


def test_odd_names_of_files_with_deletion_vectors(tmp_path: Path) -> None:
    for name in ("a b.parquet", "ä.parquet", "a%20b.parquet", "a+b=c.parquet"):
        vector = deletion_vector(tmp_path, [0], "u")
        write_mapped_delta(tmp_path, {name: FILES["one.parquet"]}, {name: vector})
        assert [row[0] for row in rows_of(tmp_path, rhs="ev.item")] == list("bcde")
    assert rows_of(f"{tmp_path}/", rhs="ev.item") == rows_of(tmp_path, rhs="ev.item")
    assert found_in(f"{tmp_path}/").describe() == found_in(tmp_path).describe()


def test_columns_that_are_mapped_by_number(tmp_path: Path) -> None:
    kinds = {"other": (pa.string(), "1"), "c1": (pa.string(), "9"), "n": (pa.int64(), "4")}
    fields = [
        pa.field(name, kind, metadata={"PARQUET:field_id": number}) for name, (kind, number) in kinds.items()
    ]
    file = pa.table([["a"], ["wrong"], [7]], schema=pa.schema(fields))
    write_mapped_delta(tmp_path, {"one.parquet": file}, {}, mode="id")
    assert rows_of(tmp_path, rhs="n") == [("a", "7")]


def test_a_damaged_deletion_vector(tmp_path: Path) -> None:
    write_mapped_delta(tmp_path, FILES, {"one.parquet": deletion_vector(tmp_path, [0], "u")})
    (file,) = tmp_path.glob("ab/deletion_vector_*.bin")
    file.write_bytes(file.read_bytes()[:-6] + b"\0" * 6)
    with pytest.raises(FormatError, match="the deletion vector at byte 1 is damaged"):
        rows_of(tmp_path, rhs="ev.item")
    file.unlink()
    with pytest.raises(NotFoundError, match=file.name):
        rows_of(tmp_path, rhs="ev.item")


def test_a_deletion_vector_that_makes_no_sense(tmp_path: Path) -> None:
    for vector, message in (
        ({"storageType": "u", "pathOrInlineDv": "ab"}, "20 characters of a deletion vector's UUID, found"),
        ({"storageType": "u", "pathOrInlineDv": "ä" * 20}, "expected Z85"),
        ({"storageType": "i", "pathOrInlineDv": "ab"}, "found other bytes"),
        ({"storageType": "i", "pathOrInlineDv": ""}, "with a text, a size and an offset"),
        ({"offset": -1}, "an offset from 0 on, found .* and -1"),
        ({"sizeInBytes": 0}, "a size and an offset"),
        ({"sizeInBytes": 2_000_000_000}, "1 to 1,073,741,824 bytes"),
        ({"offset": 1 << 30}, "is damaged"),
    ):
        whole = deletion_vector(tmp_path, [0], "u") | vector
        write_mapped_delta(tmp_path, FILES, {"one.parquet": whole})
        with pytest.raises(FormatError, match=message):
            rows_of(tmp_path, rhs="ev.item")


def test_a_few_bytes_that_delete_billions_of_rows(tmp_path: Path) -> None:
    """A vector is never expanded: 2^33 positions in 2 MB would be 64 GiB."""
    write_mapped_delta(tmp_path, FILES, {"one.parquet": deletion_vector(tmp_path, range(2, 1 << 33), "i")})
    assert [row[0] for row in rows_of(tmp_path, rhs="ev.item")] == list("abfg")


@given(st.binary(max_size=40))
def test_z85_gives_the_bytes_back(content: bytes) -> None:
    assert decoded(z85(content))[: len(content)] == content


def test_files_that_vacuum_has_deleted(table: Path) -> None:
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert [row[0] for row in rows_of(table)] == ["a", "c", "c"]
    message = r"version 1 of the table names this file, which is not there: .*vacuum"
    with pytest.raises(NotFoundError, match=message):
        rows_of(table, snapshot=1)


def test_versions_that_are_not_there(table: Path) -> None:
    for snapshot, message in (
        (9, r"expected a log of version 9, found the versions 0 to 3"),
        ("main", r"expected a number as snapshot of Delta Lake, found 'main'"),
    ):
        with pytest.raises(RawTableError, match=message):
            found_in(table, snapshot=snapshot)
    (table / "_delta_log/00000000000000000001.json").unlink()
    with pytest.raises(RawTableError, match=r"expected the commits 0 to 3 .*found none of version 1"):
        found_in(table)


def test_an_unknown_feature(table: Path) -> None:
    path = table / "_delta_log/00000000000000000000.json"
    features = {"readerFeatures": ["timeMachine"], "writerFeatures": ["timeMachine"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], json.dumps(protocol), *lines[2:]]))
    with pytest.raises(RawTableError, match=r"timeMachine"):
        found_in(table).files()


def test_a_damaged_log(table: Path) -> None:
    for log in ("{", '{"metaData": 3}', "[" * 100_000, "\0"):
        (table / "_delta_log/00000000000000000003.json").write_text(log)
        with pytest.raises(RawTableError, match=r"orders: version 3 cannot be read"):
            found_in(table).files()


@pytest.mark.parametrize(
    "place", ["../../secret.parquet", "{}/secret.parquet", "file://{}/secret.parquet", "link"]
)
def test_a_log_that_names_files_elsewhere(tmp_path: Path, place: str) -> None:
    pq.write_table(ROWS, tmp_path / "secret.parquet")
    path = tmp_path / "lake/orders"
    write_deltalake(path, ROWS)
    (path / "link").symlink_to(tmp_path / "secret.parquet")
    log = path / "_delta_log/00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[-1]["add"]["path"] = place.format(tmp_path)
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(FormatError, match=r"orders: its log names the file .*, outside the table's folder"):
        found_in(path).files()
    allowed = [row[0] for row in rows_of(path, data_path=[str(tmp_path)])]
    assert allowed == ["a", "b", "c"]


def test_raw_files_of_a_table_are_refused(table: Path) -> None:
    for path in (f"{table}/*.parquet", f"{table}/day=2026-11-01", table.parent, f"{table.parent}/*"):
        message = rf"found a table of Delta Lake.*set the path of the table to {table}"
        with pytest.raises(RawTableError, match=message):
            found_in(path)
    with pytest.raises(RawTableError, match="found a table of Delta Lake, and format: parquet; leave out"):
        found_in(table, format="parquet")
    with pytest.raises(RawTableError, match="expected a folder with _delta_log, found none"):
        found_in(table.parent, format="delta")
    assert rows_of(table, format="delta") == rows_of(table)


def test_a_folder_whose_name_begins_with_the_recorded_one_is_another() -> None:
    places = Places("/moved", "/was/here", ())
    assert places.uri_of("/was/here/x") == "/moved/x"
    with pytest.raises(FormatError, match="outside the table's folder"):
        places.uri_of("/was/hereafter/x")
