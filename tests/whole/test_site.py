"""The site of docs/: it builds without a warning, loads nothing from elsewhere, and has all commands."""

import html
import json
import re
import sys
from pathlib import Path

import click
import pytest

from bench import page
from graphmill.cli.main import command
from tests import REPOSITORY
from tests.processes import completed

LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)"
)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_is_whole_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    """Built as `make docs` builds it: a warning, also of a broken link, ends the command."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    completed(*build, cwd=REPOSITORY)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    loaded = {each.name: LOADED.findall(each.read_text()) for each in pages}
    assert {name: found for name, found in loaded.items() if found} == {}
    styles = [path.read_text() for path in tmp_path.rglob("*.css")]
    assert not [text for text in styles if re.search(r"url\([\"']?(?:https?:)?//", text)]

    shown = html.unescape((tmp_path / "reference" / "commands.html").read_text())
    for name in command.list_commands(click.Context(command)):
        assert f"Usage: graphmill {name} " in shown
    assert "Usage: dask-submit " in shown

    # tables without a class get a frame that scrolls, if their first columns do not break
    shown = (tmp_path / "reference" / "configuration.html").read_text()
    assert re.search(r"<table>(?:(?!</table>).)*?<td><code>max_field_lines</code></td>", shown, re.DOTALL)
    assert "site.css" in shown
    rules = re.findall(r"([^{}]+){([^{}]*)}", (tmp_path / "site.css").read_text())
    assert any("td:first-child code" in names and "white-space: nowrap" in rule for names, rule in rules)

    shown = (tmp_path / "reference" / "python.html").read_text()
    for name in ("graphmill.open", "graphmill.checkpoints.recis.Saver", "train.pbg_api.do_eval"):
        assert f'id="{name}"' in shown
    titles = re.findall(r"doc-class-name\">([^<]*)<", shown)
    assert {"Run", "Neighbor", "FoldedId", "Checkpoint"} <= {*titles}  # users import none of them by its path


@pytest.mark.parametrize("page", ["index.md", "tutorial/quickstart.md"])
def test_what_stands_in_a_block_of_a_first_page_fits_a_telephone(page: str) -> None:
    """Diagrams that are cut say less than none; commands may be scrolled."""
    drawn = re.findall(r"^```\n(.*?)^```$", (REPOSITORY / "docs" / page).read_text(), re.S | re.M)
    assert [line for text in drawn for line in text.splitlines() if len(line) > 46 and "  |" in text] == []


@pytest.mark.parametrize("name", ["figures", "large"])
def test_a_page_of_figures_is_made_of_its_json_file(name: str) -> None:
    folder = REPOSITORY / "docs/benchmarks"
    found = json.loads((folder / f"{name}.json").read_text())
    assert (folder / f"{name}.md").read_text() == page.markdown(found), "make reference"
