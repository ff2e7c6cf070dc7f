"""Tables of Iceberg: written by pyiceberg, with deletes of other writers; read back by pyiceberg."""

import gzip
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import manifest
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DateType, DoubleType, IntegerType, StringType
from pyroaring import BitMap64

from etl.tables.data_file import Deletes
from etl.tables.lake.deletes import DeletedRows
from graphmill import storage
from graphmill.errors import FormatError, NotFoundError, RawTableError
from tests.etl.tables.lakes import (
    DAYS,
    ROWS,
    TYPED,
    VALUES,
    catalog_at,
    check_pruning,
    filters_on,
    found_in,
    iceberg_table,
    puffin,
    read,
    root_of,
    rows_of,
)


def foreign_rows(table: Table, columns: list[str], snapshot: int | None = None) -> list[tuple[Any, ...]]:
    """The rows as pyiceberg itself reads them."""
    rows = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in rows)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Snapshots: three rows; two more; without b."""
    made = iceberg_table(tmp_path, ROWS, ("day", "identity"))
    made.append(ROWS.slice(1))
    made.delete("u == 'b'")
    return made


def test_the_rows_of_each_snapshot(table: Table) -> None:
    assert rows_of(table) == foreign_rows(table, ["u", "i"])
    for each in table.snapshots():
        expected = foreign_rows(table, ["u", "i"], each.snapshot_id)
        assert rows_of(table, snapshot=each.snapshot_id) == expected
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "monthly").commit()
    for name in (str(first), "monthly"):
        assert rows_of(table, snapshot=name) == foreign_rows(table, ["u", "i"], first)
    with pytest.raises(RawTableError, match=r"expected a snapshot weekly, found .*main.*monthly"):
        found_in(table, snapshot="weekly")


def test_a_catalog_says_what_counts(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  shop:\n    type: sql\n    uri: sqlite:///{tmp_path}/catalog.db\n"
    )
    newest = max(root_of(table).glob("metadata/*.metadata.json"))
    shutil.copy(newest, newest.with_name(newest.name.replace("-", "-aborted-", 1)))
    with pytest.raises(RawTableError, match=r"expected one newest file metadata/.*name it as `catalog`"):
        found_in(table)
    expected = foreign_rows(table, ["u", "i"])
    assert rows_of("sales.orders", catalog="shop") == expected
    assert rows_of(newest) == expected
    with pytest.raises(RawTableError, match=r"catalog shop, table sales\.nothing: .*NoSuchTableError"):
        found_in("sales.nothing", catalog="shop")
    with pytest.raises(RawTableError, match=r"expected a catalog of that name in .pyiceberg.yaml"):
        found_in("sales.orders", catalog="shops")


def test_columns_that_are_renamed_dropped_and_added(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("i", "item")
        change.delete_column("n")
    with table.update_schema() as change:
        change.add_column("i", StringType())
    new = pa.table({"u": ["d"], "item": ["w"], "i": ["new"], "day": DAYS[:1]})
    table.append(new.select(table.schema().column_names))
    with table.update_schema() as change:
        change.add_column("n", IntegerType())
    assert rows_of(table, rhs="item") == foreign_rows(table, ["u", "item"])
    assert read(table) == ([("d", "new")], [("rhs: null", 1)] * 3)
    assert read(table, rhs="item", weight="n") == ([], [("weight: null", 1)] * 4)
    first = table.snapshots()[0].snapshot_id
    assert rows_of(table, snapshot=first) == foreign_rows(table, ["u", "i"], first)


def test_columns_that_came_later_with_a_default(table: Table) -> None:
    """Version 3 of the format: rows of earlier files have the default, which pyiceberg cannot write."""
    kinds = {"s": StringType(), "w": DoubleType(), "d": DateType(), "b": BooleanType()}
    with table.update_schema() as change:
        for name, kind in kinds.items():
            change.add_column(name, kind)
    newest = max(root_of(table).glob("metadata/*.metadata.json"))
    metadata = json.loads(newest.read_text()) | {"format-version": 3, "next-row-id": 0}
    defaults = {"s": "new", "w": 1.5, "d": "2020-01-02", "b": True}
    for field in metadata["schemas"][-1]["fields"]:
        if field["name"] in defaults:
            field |= dict.fromkeys(("initial-default", "write-default"), defaults[field["name"]])
    newest.write_text(json.dumps(metadata))
    for name, default in (("s", "new"), ("d", "2020-01-02"), ("b", "true")):
        assert {rhs for _, rhs in rows_of(newest, rhs=name)} == {default}
    assert {weight for _, _, weight in read(newest, weight="w")[0]} == {1.5}
    assert read(newest, filters=[["s", "==", "new"]]) == read(newest)
    assert read(newest, filters=[["s", "==", "old"]]) == ([], [])


def test_filters_prune_files_and_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        ([["day", ">", "2026-11-01"]], 2, ["c", "c"]),
        ([["u", "in", ["a", "z"]], ["day", "!=", None]], 1, ["a"]),
        ([[["day", "<", "2026-11-02"]], [["u", "==", "c"]]], 3, ["a", "c", "c"]),
        ([["n", "not in", [1, 2]], ["i", "!=", "x"]], 3, ["c", "c"]),
        ([["u", "==", "nobody"]], 0, []),
    ]
    check_pruning(table, cases, monkeypatch)


@pytest.mark.parametrize(
    ("transform", "column"),
    [
        *((IdentityTransform(), column) for column in VALUES),
        *((BucketTransform(3), column) for column in ("long", "text", "money")),
        *((DayTransform(), column) for column in ("day", "zoned")),
        *((TruncateTransform(2), column) for column in ("long", "text", "money")),
    ],
    ids=str,
)
def test_partitions_by_columns_of_all_types(tmp_path: Path, column: str, transform: Any) -> None:
    more = [("bytes", "identity")] if isinstance(transform, DayTransform) else []
    made = iceberg_table(tmp_path, TYPED, (column, transform, "part"), *more)
    for filters, expected in filters_on(column):
        assert [row[0] for row in rows_of(made, filters=filters)] == expected
    if isinstance(transform, IdentityTransform):
        assert len(found_in(made, filters=[[column, "==", VALUES[column]]]).files()) == 1
    assert [row[0] for row in rows_of(made, filters=[["bytes", "==", "c"]])] == ["3"]


def test_files_that_were_added_as_they_are(tmp_path: Path) -> None:
    """Files of a Hive table: without numbers of columns, without the columns of their folders."""
    made = iceberg_table(tmp_path, ROWS.schema.empty_table(), ("day", "identity"))
    path = root_of(made) / "data/day=2026-11-01/000000_0"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS.slice(0, 2), path)
    made.add_files([str(path)])
    assert rows_of(made) == foreign_rows(made, ["u", "i"])
    pq.write_table(ROWS.slice(0, 2).drop_columns("day"), path)
    assert rows_of(made, rhs="day") == [("a", "2026-11-01"), ("b", "2026-11-01")]
    with made.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(RawTableError, match="expected numbers of columns"):
        rows_of(made)


def write_parquet(table: Table, rows: pa.Table) -> Path:
    path = root_of(table) / "data/deletes.parquet"
    pq.write_table(rows, path)
    return path


class DeletesWriter(manifest.ManifestWriterV2):
    """Writes a manifest of files of deletes."""

    def content(self) -> manifest.ManifestContent:
        return manifest.ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


def delete_rows(table: Table, content: manifest.DataFileContent, path: Path, equality_ids: list[int]) -> Path:
    """Add a file of deletes to the newest snapshot; return the metadata.json that has it."""
    snapshot = table.current_snapshot()
    folder, number = root_of(table) / "metadata", snapshot.snapshot_id
    partition = next(iter(table.scan().plan_files())).file.partition
    deletes = manifest.DataFile.from_args(
        content=content,
        file_path=str(path),
        file_format=manifest.FileFormat[path.suffix[1:].upper()],
        partition=partition or Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=equality_ids or None,
    )
    deletes.spec_id = table.spec().spec_id
    output = table.io.new_output(str(folder / "deletes.avro"))
    with DeletesWriter(table.spec(), table.schema(), output, number, "null") as writer:
        added = {"status": manifest.ManifestEntryStatus.ADDED, "snapshot_id": number, "data_file": deletes}
        writer.add_entry(manifest.ManifestEntry.from_args(**added))
    listed = str(folder / "snap-deletes.avro")
    place = (2, table.io.new_output(listed), number, None, snapshot.sequence_number, "null")
    with manifest.write_manifest_list(*place) as lists:
        lists.add_manifests([*snapshot.manifests(table.io), writer.to_manifest_file()])
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    for each in metadata["snapshots"]:
        if each["snapshot-id"] == number:
            each["manifest-list"] = listed
    changed = folder / "00099-deletes.metadata.json"
    changed.write_text(json.dumps(metadata))
    return changed


def test_deletes_by_position(tmp_path: Path) -> None:
    made = iceberg_table(tmp_path, pa.concat_tables([ROWS] * 3))
    (file,) = (task.file.file_path for task in made.scan().plan_files())
    positions = pa.table({"file_path": [file, file, "other"], "pos": [1, 5, 0]})
    changed = delete_rows(made, manifest.DataFileContent.POSITION_DELETES, write_parquet(made, positions), [])
    expected = foreign_rows(StaticTable.from_metadata(str(changed)), ["u", "i", "n"])
    assert len(expected) == 7
    for chunk_rows in (1, 2, 1000):
        assert rows_of(made, chunk_rows, weight="n") == expected
    assert rows_of(made, filters=[["n", "==", 3]]) == [("c", "z")] * 2
    (root_of(made) / "data/deletes.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"deletes\.parquet"):
        rows_of(made)


def test_deletion_vectors(tmp_path: Path) -> None:
    made = iceberg_table(tmp_path, pa.concat_tables([ROWS] * 3))
    (other,) = (task.file.file_path for task in made.scan().plan_files())
    made.append(ROWS)
    path = root_of(made) / "data/deletes.puffin"
    vectors = {name: BitMap64(rows).serialize() for name, rows in ((other, [0, 8]), ("else", [1]))}
    path.write_bytes(puffin(vectors))
    changed = delete_rows(made, manifest.DataFileContent.POSITION_DELETES, path, [])
    expected = foreign_rows(StaticTable.from_metadata(str(changed)), ["u", "i"])
    assert len(expected) == 10
    assert rows_of(changed) == rows_of(changed, 2) == expected
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(FormatError, match=r"puffin: expected deletion vectors in Puffin"):
        rows_of(changed)


def test_deletes_by_equality_are_refused(tmp_path: Path) -> None:
    made = iceberg_table(tmp_path, ROWS)
    path = write_parquet(made, pa.table({"u": ["b"]}))
    changed = delete_rows(made, manifest.DataFileContent.EQUALITY_DELETES, path, [1])
    with pytest.raises(RawTableError, match=r"equality deletes.*compact the table first.*rewrite_data_files"):
        found_in(changed).files()
    with pytest.raises(RawTableError, match=r"equality deletes"):
        found_in(changed, filters=[["u", "==", "a"]]).files()


def test_metadata_in_gzip(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its bytes: both names that writers have used; and a small file that unpacks to a large one."""
    expected = rows_of(table)
    (*_, newest) = sorted((root_of(table) / "metadata").glob("*.metadata.json"))
    for name in ("00099-a.gz.metadata.json", "00100-a.metadata.json.gz"):
        (newest.parent / name).write_bytes(gzip.compress(newest.read_bytes()))
        assert rows_of(table) == rows_of(newest.parent / name) == expected
    monkeypatch.setattr(storage, "MAX_TEXT_BYTES", 10 << 10)
    (newest.parent / "00101-a.gz.metadata.json").write_bytes(gzip.compress(b" " * (11 << 10)))
    with pytest.raises(FormatError, match="expected at most 10,240 bytes of text, found more"):
        rows_of(table)


def test_a_table_that_was_moved(tmp_path: Path, table: Table) -> None:
    expected = rows_of(table)
    moved = tmp_path / "elsewhere/orders"
    shutil.copytree(root_of(table), moved)
    shutil.rmtree(root_of(table))
    assert rows_of(moved) == expected


def test_files_that_are_gone(table: Table) -> None:
    for path in root_of(table).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(NotFoundError, match=r"snapshot \d+ of the table names this file, which is not there"):
        rows_of(table)
    next(root_of(table).glob("metadata/snap-*.avro")).unlink()
    for path in root_of(table).glob("metadata/*.avro"):
        path.unlink()
    with pytest.raises(NotFoundError, match=r"avro: cannot open"):
        rows_of(table)


@pytest.mark.parametrize("name", ["manifest-list", "manifest", "data"])
def test_metadata_that_names_files_elsewhere(tmp_path: Path, table: Table, name: str) -> None:
    """The whole table lies elsewhere, except for the part that is read first."""
    root = root_of(table)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    newest = max(copy.glob("metadata/*.metadata.json"))
    metadata = json.loads(newest.read_text())
    metadata["location"] = "/nowhere"
    if name != "manifest-list":
        for each in metadata["snapshots"]:
            each["manifest-list"] = f"{copy}/metadata/{Path(each['manifest-list']).name}"
    newest.write_text(json.dumps(metadata))
    # Where only the data lie elsewhere, the folder of the manifests is allowed.
    allowed = [str(root / "metadata")] if name == "data" else []
    with pytest.raises(FormatError, match=r"copy: its log names the file .*, outside the table's folder"):
        found_in(copy, data_path=allowed).files()
    assert rows_of(copy, data_path=[str(root)]) == rows_of(root)


def test_damaged_metadata(table: Table) -> None:
    newest = max(root_of(table).glob("metadata/*.metadata.json"))
    whole = newest.read_text()
    for text in ("{", "[]", '{"format-version": 9}', "[" * 100_000):
        newest.write_text(text)
        with pytest.raises(RawTableError, match=r"metadata\.json: cannot be read as a table of Iceberg"):
            found_in(table)
    newest.write_text(whole)
    for path in root_of(table).glob("metadata/*-m0.avro"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RawTableError, match=r"cannot be read as a table of Iceberg"):
        found_in(table).files()


def test_an_empty_table(tmp_path: Path) -> None:
    made = catalog_at(tmp_path).create_table("sales.empty", schema=ROWS.schema)
    assert found_in(made).files() == []
    assert "snapshot none, schema 0" in found_in(made).describe()[0]["snapshot"]


def deletes_in(folder: Path, bitmap: bytes, **described: Any) -> Deletes:
    (folder / "deletes.puffin").write_bytes(puffin({"mine": bitmap}, **described))
    return Deletes("puffin", str(folder / "deletes.puffin"), "mine")


def test_a_vector_in_puffin_that_makes_no_sense(tmp_path: Path) -> None:
    for described, message in (
        ({"offset": -4}, "from byte 0 on, found .* from byte -4"),
        ({"length": -1}, "expected a deletion vector of 1 to"),
        ({"length": 1 << 40}, "expected a deletion vector of 1 to"),
        ({"length": 100}, "is damaged"),
        ({"compression-codec": "zstd"}, "without compression"),
        ({"type": "apache-datasketches-theta-v1"}, "expected deletion vectors"),
        ({"offset": "x"}, "expected deletion vectors in Puffin"),
    ):
        with pytest.raises(FormatError, match=message):
            DeletedRows([deletes_in(tmp_path, BitMap64([1]).serialize(), **described)])


def test_a_vector_of_a_few_bytes_stays_small(tmp_path: Path) -> None:
    """The key 2^31 - 1 stands for positions near 2^63: readers that fill the gap take all memory."""
    last = struct.pack("<QI", 1, 2**31 - 1) + BitMap64([7]).serialize()[12:]
    mask = DeletedRows([deletes_in(tmp_path, last)]).mask(((2**31 - 1) << 32) + 5, 4)
    assert mask.tolist() == [True, True, False, True]


def test_positions(tmp_path: Path) -> None:
    path = str(tmp_path / "deletes.parquet")
    rows = {"file_path": ["mine", "other", "mine", None], "pos": [5, 6, 1 << 40, 7]}
    pq.write_table(pa.table(rows), path)
    deleted = DeletedRows([Deletes("positions", path, "mine")])
    assert np.flatnonzero(~deleted.mask(0, 10)).tolist() == [5]
    assert np.flatnonzero(~deleted.mask((1 << 40) - 1, 3)).tolist() == [1]
    assert DeletedRows([]).mask(3, 2).all()
    pq.write_table(pa.table(rows | {"pos": [-5, 6, 1, 7]}), path)
    with pytest.raises(FormatError, match="expected positions from 0 on, found -5"):
        DeletedRows([Deletes("positions", path, "mine")])
    (tmp_path / "deletes.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RawTableError, match=r"deletes\.parquet: cannot be read"):
        DeletedRows([Deletes("positions", path, "mine")])
