"""The site of docs/: it builds without a warning, loads nothing from elsewhere, and has all commands."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench import page
from graphmill.cli.main import command
from tests import REPOSITORY

LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning, also of a broken link, ends the command."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = {each.name: LOADED.findall(each.read_text()) for each in pages}
    assert {name: found for name, found in loaded.items() if found} == {}
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert not [text for text in styles if re.search(r"url\([\"']?(?:https?:)?//", text)]


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_page_of_commands_shows_the_help_of_every_command(site: Path) -> None:
    shown = html.unescape((site / "reference" / "commands.html").read_text())
    for name in command.list_commands(click.Context(command)):
        assert f"Usage: graphmill {name} " in shown
    assert "Usage: dask-submit " in shown


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_keys_stay_whole_on_narrow_screens(site: Path) -> None:
    """Tables without a class get a frame that scrolls, if their first columns do not break."""
    shown = (site / "reference" / "configuration.html").read_text()
    assert re.search(r"<table>(?:(?!</table>).)*?<td><code>max_field_lines</code></td>", shown, re.DOTALL)
    assert "site.css" in shown
    rules = re.findall(r"([^{}]+){([^{}]*)}", (site / "site.css").read_text())
    assert any("td:first-child code" in names and "white-space: nowrap" in rule for names, rule in rules)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_page_of_python_describes_the_public_names(site: Path) -> None:
    shown = (site / "reference" / "python.html").read_text()
    for name in (
        "graphmill.open",
        "graphmill.library.run.Run.neighbors",
        "graphmill.checkpoints.open_checkpoint",
        "graphmill.convert.convert",
        "graphmill.checkpoints.recis.Saver",
        "graphmill.errors.ConfigError",
        "train.pbg_api.train",
        "train.pbg_api.do_eval",
    ):
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
