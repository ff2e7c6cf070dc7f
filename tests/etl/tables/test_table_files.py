"""Files that the path of a table names, and files that no path names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.tables import files
from graphmill.config import Config
from graphmill.config.sections.etl import EntityTableConfig
from graphmill.errors import NotFoundError, RawTableError
from tests.etl.graphs import config_of
from tests.etl.tables.lakes import rows_of

TABLE: Any = {"path": "t.csv", "lhs": 0, "rhs": 1, "relation": "to"}


def config(output: str) -> Config:
    return config_of(output, [TABLE], entities={"node": 1})


def table_at(*paths: str) -> EntityTableConfig:
    return EntityTableConfig(path=paths, type="node", id=0)


def found(path: str, output: str = "/nowhere") -> list[str]:
    return [Path(file.uri).name for file in files.find_files(config(output), table_at(path)).files()]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    touch(tmp_path, "a.csv", "_a.csv", ".a.csv", "_SUCCESS", "_temporary/b.csv", ".cache/c.csv")
    touch(tmp_path, "_started_7", "_committed_7", "_committed_vacuum7")  # of Databricks
    touch(tmp_path, "d=1/d.csv", "_d=1/e.csv", "d=1/_f.csv", "d=1/.g.csv", "_logs/h.csv")
    return tmp_path


def test_hidden_files_and_markers_are_skipped_unless_named(folder: Path) -> None:
    for paths, names in (
        (["", "*"], ["e.csv", "a.csv", "d.csv"]),
        (["*.csv", "[_.a]*.csv"], ["a.csv"]),
        (["*/*.csv"], ["e.csv", "d.csv"]),
        (["_*.csv", "_a.csv"], ["_a.csv"]),
        ([".a.csv"], [".a.csv"]),
        (["_logs", "_logs/*"], ["h.csv"]),
    ):
        for path in paths:
            assert found(f"{folder}/{path}") == names
    for path in ("?a.csv", ".*"):
        with pytest.raises(NotFoundError):
            found(f"{folder}/{path}")


@pytest.mark.parametrize("root", ["{}", "file://{}"])
def test_a_folder_of_tables_never_holds_the_run_s_own_output(folder: Path, root: str) -> None:
    touch(folder, "out/embeddings/a/part-00000.csv", "out/stray.csv", "outer/z.csv", "d=1/out/y.csv")
    inside, place = str(folder / "out"), root.format(folder)
    assert found(place, inside) == ["e.csv", "a.csv", "d.csv", "y.csv", "z.csv"]
    assert found(f"{place}/*/*.csv", inside) == ["e.csv", "d.csv", "z.csv"]
    assert found(f"{place}/*", inside) == ["e.csv", "a.csv", "d.csv", "y.csv", "z.csv"]
    assert "y.csv" not in found(place, str(folder / "d=1" / "out"))
    link = folder.with_name(f"{folder.name}-link")
    link.symlink_to(folder)
    assert found(str(link), inside) == found(place, inside)
    link.unlink()


LOGS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00000-5c6a.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Paimon": "schema/schema-0",
    "Spark's Structured Streaming": "_spark_metadata/0",
}
REMEDIES = {
    "Delta Lake": "set the path of the table to .*/lake/table:",
    "Iceberg": "set the path of the table",
}


@pytest.mark.parametrize("name", LOGS)
def test_tables_with_a_log_are_refused(tmp_path: Path, name: str) -> None:
    touch(tmp_path, f"lake/table/{LOGS[name]}", "lake/table/data/x.csv", "lake/table/y.csv")
    remedy = REMEDIES.get(name, r"write\.parquet")
    for path in (
        *("lake/table/*.csv", "lake/table/data", "lake/table/data/*.csv", "lake/table/data/x.csv", "lake"),
        *("lake/*", "lake/*/data/*.csv", "lake/t*/*.csv", "l*/table/data"),
        *([] if name in REMEDIES else ["lake/table", "lake/table/"]),  # no reader knows it
    ):
        with pytest.raises(RawTableError, match=rf"lake/table/?: .*a table of {name}, .*{remedy}"):
            found(f"{tmp_path}/{path}")


@pytest.mark.parametrize("partition", ["", "/day=2026-11-01"])
def test_managed_tables_of_hive_are_refused_by_name(tmp_path: Path, partition: str) -> None:
    kinds = ["base_0000002", "base_0000002_v0000123", "delta_0000001_0000001", "delta_0000001_0000001_0000"]
    for number, below in enumerate([*kinds, "delete_delta_0000003_0000003_0000"]):
        table = f"{tmp_path}/{number}/orders"
        touch(Path(table), f".{partition}/{below}/000000_0.csv")
        message = rf"{table}{partition}: .*Hive \(managed.*CREATE EXTERNAL TABLE"
        for path in ("", partition, *(f"{partition}/{end}" for end in ("*", below, f"{below}/*"))):
            with pytest.raises(RawTableError, match=message):
                found(table + path)


def test_folders_like_those_of_hive_are_plain(tmp_path: Path) -> None:
    """So are folders of metadata of other tools."""
    touch(tmp_path, "base_1/a.csv", "delta_2026/b.csv", "schema/c.csv", "base_0000002x/d.csv")
    touch(tmp_path, "metadata/about.csv", "_metadata", "_delta_logs/x", "x.csv")
    assert found(str(tmp_path)) == ["d.csv", "a.csv", "b.csv", "about.csv", "c.csv", "x.csv"]


def test_a_table_of_ducklake_is_refused(tmp_path: Path) -> None:
    name = "ducklake-019a5c3e-7f11-7a52-8f2e-0a1b2c3d4e5f.parquet"
    touch(tmp_path, f"main/orders/{name}", "main/orders/x.csv")
    for path in ("main", "main/orders/*", f"main/orders/{name}"):
        with pytest.raises(RawTableError, match=r"main/orders: .*a table of DuckLake.*COPY"):
            found(f"{tmp_path}/{path}")


@pytest.mark.parametrize(("mark", "name"), [("iceberg.schema", "Iceberg"), ("hoodie_min_record_key", "Hudi")])
def test_a_file_that_was_taken_out_of_its_table_is_refused(tmp_path: Path, mark: str, name: str) -> None:
    table = pa.table({"u": ["a"], "i": ["x"]}).replace_schema_metadata({mark: "{}"})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(RawTableError, match=rf"t\.parquet: .*of a table of {name} \({mark} in its footer\)"):
        rows_of(tmp_path / "t.parquet")


def test_a_link_into_a_table_with_a_log_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "lake/table/_delta_log/00000000000000000000.json", "lake/table/day=1/x.csv")
    (tmp_path / "today").symlink_to(tmp_path / "lake/table/day=1")
    with pytest.raises(RawTableError, match=r"lake/table: .*a table of Delta Lake"):
        found(f"{tmp_path}/today")


UNFINISHED = ["a.csv._COPYING_", "b.csv.inprogress", "c.csv.inprogress.6f1c", "d.in-progress", "e.csv.tmp"]
UNFINISHED += ["f.csv~", "g.csv.crdownload", "h.partial", "_temporary", "+tmp", "i.tmp"]


def test_files_of_writers_at_work_are_left_out_and_listed(tmp_path: Path) -> None:
    touch(tmp_path, *UNFINISHED[:8], "_temporary/0/a.csv", "+tmp/b.csv", "i.tmp/c.csv", "x.csv", "k=~/y.csv")
    every = sorted(UNFINISHED)
    for path in ("", "*"):
        listing = files.find_files(config("/nowhere"), table_at(f"{tmp_path}/{path}"))
        assert [Path(each.uri).name for each in listing.files()] == ["y.csv", "x.csv"]
        assert sorted(Path(each).name for each in listing.unfinished) == every
    assert found(f"{tmp_path}/e.csv.tmp") == ["e.csv.tmp"]
    assert found(f"{tmp_path}/*.tmp") == ["e.csv.tmp", "c.csv"]
    assert found(f"{tmp_path}/*.csv") == ["x.csv"]
    touch(tmp_path / "none", "part-0._COPYING_")
    with pytest.raises(NotFoundError, match=r"no finished file there .*part-0._COPYING_"):
        found(f"{tmp_path}/none")


def test_a_name_with_brackets_that_exists_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "run1/a.csv", "run[1]/b.csv", "run[1]/day[2]/c.csv", "run1/day2/d.csv", "run[1]/e1.csv")
    assert found(f"{tmp_path}/run[1]") == ["b.csv", "c.csv", "e1.csv"]
    assert found(f"{tmp_path}/run[1]/*.csv") == ["b.csv", "e1.csv"]
    assert found(f"{tmp_path}/run[1]/day[2]/*") == ["c.csv"]
    assert found(f"{tmp_path}/*/day[2]/*") == ["d.csv", "c.csv"]
    assert found(f"{tmp_path}/run[1]/e[1].csv") == ["e1.csv"]
    monkeypatch.chdir(tmp_path / "run[1]")
    assert found("*.csv") == found("./*.csv") == ["b.csv", "e1.csv"]


@pytest.mark.parametrize("root", ["{}", "file://{}"])
def test_the_input_is_never_a_pattern(tmp_path: Path, root: str) -> None:
    touch(tmp_path, "run1/a.csv")
    place = {"input": root.format(f"{tmp_path}/run[1]")}
    named = config_of("/nowhere", [TABLE], entities={"node": 1}, top=place)
    with pytest.raises(NotFoundError, match=r"run\[1\]/\*\.csv: no file there"):
        files.find_files(named, table_at("*.csv"))
    touch(tmp_path, "run[1]/b.csv")
    for path in ("*.csv", "b.csv", "[b].csv", "./*.csv"):
        assert [Path(each.uri).name for each in files.find_files(named, table_at(path)).files()] == ["b.csv"]


def test_a_file_counts_once_whatever_links_lead_to_it(tmp_path: Path) -> None:
    touch(tmp_path, "t/day=1/a.csv", "t/day=2/b.csv", "other/c.csv")
    links = {"t/loop": "t", "t/day=1/up": "t", "t/a-link.csv": "t/day=1/a.csv", "t/current": "t/day=2"}
    for link, target in (links | {"t/out": "other", "t/out2": "other"}).items():
        (tmp_path / link).symlink_to(tmp_path / target)
    listing = files.find_files(config("/nowhere"), table_at(f"{tmp_path}/t"))
    assert [Path(each.uri).relative_to(tmp_path) for each in listing.files()] == [
        Path(each) for each in ("t/day=1/a.csv", "t/day=2/b.csv", "t/out/c.csv")
    ]
    assert {Path(each).parent.name for each in listing.twice} == {"t", "current", "out2"}
    both = files.find_files(config("/nowhere"), table_at(f"{tmp_path}/t/day=1/a.csv", f"{tmp_path}/t/*.csv"))
    assert [Path(each.uri).name for each in both.files()] == ["a.csv"]


def test_a_folder_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    for name in ("rel=%E0%A4", "rel=%ff", "%C3=x"):
        touch(tmp_path / name, f"{name}/a.csv")
        with pytest.raises(RawTableError, match=rf"/{name}: expected a folder's name in UTF-8"):
            found(f"{tmp_path}/{name}")


def test_roots_of_tables(tmp_path: Path) -> None:
    touch(tmp_path, "odd[1].csv")
    paths = ["a.csv", "b/*.csv", "c/d=*/e/*.csv", "odd[1].csv"]
    tables = [TABLE | {"path": [f"{tmp_path}/{path}" for path in paths]}]
    chosen = config_of("out", tables, entities={"node": 1})
    assert files.table_roots(chosen) == [f"{tmp_path}/{name}" for name in ("a.csv", "b", "c", "odd[1].csv")]
