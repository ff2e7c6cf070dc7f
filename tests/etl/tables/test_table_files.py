"""Files that the path of a table names, and files that no path names."""

from pathlib import Path
from typing import Any

import pytest

from etl.config import EntityTableConfig
from etl.tables import files
from graphmill.config import Config
from graphmill.errors import NotFoundError, RawTableError
from tests.etl.graphs import config_of

TABLE: Any = {"path": "t.csv", "lhs": 0, "rhs": 1, "relation": "to"}


def config(output: str) -> Config:
    return config_of(output, [TABLE], entities={"node": 1}, relations=[("to", "node", "node")])


def found(path: str, output: str = "/nowhere") -> list[str]:
    table = EntityTableConfig(path=(path,), type="node", id=0)
    return [Path(file.uri).name for file in files.find_files(config(output), table).files()]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    touch(tmp_path, "a.csv", "_a.csv", ".a.csv", "_SUCCESS", "_temporary/b.csv", ".cache/c.csv")
    touch(tmp_path, "d=1/d.csv", "_d=1/e.csv", "d=1/_f.csv", "d=1/.g.csv", "_logs/h.csv")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ["_d=1/e.csv", "a.csv", "d=1/d.csv"]),
        ("*", ["_d=1/e.csv", "a.csv", "d=1/d.csv"]),
        ("*.csv", ["a.csv"]),
        ("[_.a]*.csv", ["a.csv"]),
        ("?a.csv", []),
        ("*/*.csv", ["_d=1/e.csv", "d=1/d.csv"]),
        ("_*.csv", ["_a.csv"]),
        ("_logs", ["_logs/h.csv"]),
        ("_logs/*", ["_logs/h.csv"]),
        ("_a.csv", ["_a.csv"]),
        (".a.csv", [".a.csv"]),
        (".*", []),
    ],
)
def test_hidden_files_and_markers_are_skipped_unless_named(folder: Path, path: str, names: list[str]) -> None:
    if not names:
        with pytest.raises(NotFoundError):
            found(f"{folder}/{path}")
    else:
        assert found(f"{folder}/{path}") == [Path(name).name for name in names]


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


LOGS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00000-5c6a.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "path",
    [
        *("lake/table/*.csv", "lake/table/data", "lake/table/data/*.csv"),
        *("lake/table/data/x.csv", "lake", "lake/*", "lake/*/data/*.csv", "lake/t*/*.csv", "l*/table/data"),
    ],
)
def test_tables_with_a_log_are_refused(tmp_path: Path, name: str, path: str) -> None:
    touch(tmp_path, f"lake/table/{LOGS[name]}", "lake/table/data/x.csv", "lake/table/y.csv")
    remedy = r"write\.parquet" if name == "Hudi" else "set the path of the table to .*/lake/table:"
    with pytest.raises(RawTableError, match=rf"lake/table: .*a table of {name}, .*{remedy}"):
        found(f"{tmp_path}/{path}")


@pytest.mark.parametrize("path", ["lake/table", "lake/table/"])
def test_a_table_of_hudi_is_refused(tmp_path: Path, path: str) -> None:
    touch(tmp_path, "lake/table/.hoodie/hoodie.properties", "lake/table/x.csv")
    with pytest.raises(RawTableError, match=r"lake/table/?: .*a table of Hudi, .*write\.parquet"):
        found(f"{tmp_path}/{path}")


def test_metadata_folders_of_other_tools_are_allowed(tmp_path: Path) -> None:
    touch(tmp_path, "metadata/about.csv", "_metadata", "_delta_logs/x", "x.csv")
    assert found(str(tmp_path)) == ["about.csv", "x.csv"]


def test_roots_of_tables(tmp_path: Path) -> None:
    touch(tmp_path, "odd[1].csv")
    paths = ["a.csv", "b/*.csv", "c/d=*/e/*.csv", "odd[1].csv"]
    tables = [TABLE | {"path": [f"{tmp_path}/{path}" for path in paths]}]
    chosen = config_of("out", tables, entities={"node": 1}, relations=[("to", "node", "node")])
    assert files.table_roots(chosen) == [f"{tmp_path}/{name}" for name in ("a.csv", "b", "c", "odd[1].csv")]
