"""The demo's graph: the script that makes it, and the tables that ship."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests import REPOSITORY

DEMO = REPOSITORY / "demo"
COLUMNS = {
    "package_relations": ["source", "relation", "target"],
    "maintained_by": ["package", "maintainer"],
    "in_section": ["package", "section"],
}
INDEX = """\
Package: editor
Version: 1:2.0-1
Maintainer: Debian Editor Team <team@lists.example.org>
Depends: libgui2 (>= 2.0) | libgui2-lite, python3:any (>= 3.11~), editor
Pre-Depends: libgui2
Recommends: spell-engine
Breaks: libgui2-lite (<< 1)
Tag: role::program,
 uitoolkit::gtk
Section: contrib/editors

Package: libgui2
Maintainer: Ada Example <ada@example.org>
Depends: python3,
 libgui2-lite [amd64] <!nocheck>
Section: libs

Package: libgui2-lite
Maintainer: Ada Example <ada@example.org>
Conflicts: libgui2, gui-virtual
Suggests: python3
Section: libs

Package: python3
Maintainer: Debian Python Team <team@lists.example.org>
Suggests: editor, python3-doc
Section: python

Package: python3-doc
Maintainer: Debian Python Team <team@lists.example.org>
Depends: python3
Section: doc

Package: loner
Maintainer: Ada Example <ada@example.org>
Depends: editor
Section: misc
"""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module: demo/ is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEMO)
        yield importlib.import_module("debian_graph")


@pytest.mark.parametrize(
    ("maintainer", "names"),
    [
        ("Debian Python Team <team+python@tracker.debian.org>,", {"Debian Python Team"}),
        ("Ada Example <ada@example.org>, Bob  Example <b@example.org>", {"Ada Example", "Bob Example"}),
        ('"Language (Japanese)" <nlp@example.org>', {"Language (Japanese)"}),
        ("Ada Example, IV <ada@example.org>", {"Ada Example, IV"}),
        ("ada@example.org", set()),
    ],
)
def test_maintainer_names_hold_no_address(script: ModuleType, maintainer: str, names: set[str]) -> None:
    assert script.maintainer_names(maintainer) == names


def test_graph_of_an_index(script: ModuleType) -> None:
    graph = script.graph_of(script.stanzas(INDEX.splitlines(keepends=True)), min_neighbours=2)
    assert graph.packages == {"editor", "libgui2", "libgui2-lite", "python3"}
    assert graph.relations == {
        ("editor", "depends", "libgui2"),
        ("editor", "depends", "libgui2-lite"),
        ("editor", "depends", "python3"),
        ("editor", "conflicts", "libgui2-lite"),
        ("libgui2", "depends", "python3"),
        ("libgui2", "depends", "libgui2-lite"),
        ("libgui2-lite", "conflicts", "libgui2"),
        ("libgui2-lite", "suggests", "python3"),
        ("python3", "suggests", "editor"),
    }
    assert ("editor", "Debian Editor Team") in graph.maintained_by
    assert ("editor", "editors") in graph.in_section
    assert len(graph.maintained_by) == len(graph.in_section) == len(graph.packages)
    assert (graph.num_indexed, graph.num_left_out_kind, graph.num_left_out_core) == (6, 1, 1)
    assert graph.num_virtual == {"recommends": 1, "conflicts": 1}


def test_command_writes_the_same_bytes_from_file_and_stdin(script: ModuleType, tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.write_text(INDEX)
    for source, text, folder in ((str(index), None, "a"), ("-", INDEX, "b")):
        arguments = [source, "--output", str(tmp_path / folder), "--min-neighbours", "2"]
        outcome = CliRunner().invoke(script.main, arguments, input=text)
        assert outcome.exit_code == 0, outcome.output
        assert "packages: 4 of 6" in outcome.output
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(f"{name}.parquet" for name in COLUMNS)
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_command_refuses_what_is_no_index(script: ModuleType, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(script.main, ["-", "--output", str(tmp_path / "out")], input="no index\n")
    assert outcome.exit_code == 1
    assert "found 0 packages" in outcome.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_shipped_tables_are_clean() -> None:
    for name, names in COLUMNS.items():
        table = pq.read_table(DEMO / "debian" / f"{name}.parquet")
        assert table.column_names == names
        assert set(table.schema.types) == {pa.string()}
        assert table.num_rows > 10_000
        for column in table.columns:
            assert column.null_count == 0
            assert pc.min(pc.utf8_length(pc.utf8_trim_whitespace(column))).as_py() > 0
            assert not pc.any(pc.match_substring(column, "@")).as_py()
        assert table.sort_by([(each, "ascending") for each in names]).equals(table)
        assert table.group_by(names).aggregate([]).num_rows == table.num_rows


def test_shipped_tables_fit_together() -> None:
    files = list((DEMO / "debian").iterdir())
    assert {path.name for path in files} == {f"{name}.parquet" for name in COLUMNS}
    assert sum(path.stat().st_size for path in files) <= 3_000_000
    relations = pq.read_table(DEMO / "debian" / "package_relations.parquet").to_pydict()
    assert set(relations["relation"]) == {"depends", "recommends", "suggests", "conflicts"}
    packages = set(relations["source"]) | set(relations["target"])
    assert packages >= {"bash", "firefox-esr", "gcc", "libreoffice", "nginx", "python3", "vim"}
    for name in ("maintained_by", "in_section"):
        assert set(pq.read_table(DEMO / "debian" / f"{name}.parquet")["package"].to_pylist()) == packages
