"""The commands of the documentation: those marked `<!-- run -->` are run, all others are parsed.

    <!-- file: NAME -->    the block that follows is written to NAME
    <!-- run -->           the block that follows is run: the lines with a `$ ` of a console block, or Python

All pages are run in one folder, the quickstart first: the others take up what it has left there.
"""

import html
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import graphmill
from bench import page
from docs.rooms_page import with_rooms
from graphmill.cli import etl, main, remap, submit, train
from graphmill.cli.main import command
from graphmill.display import terminal
from tests import REPOSITORY
from tests.forked import Forks
from tests.graphmill.checkpoints.recis_rules import RecisReader
from tests.processes import completed
from tests.remap.graph import read_rows

PAGES = sorted([*(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("*.md")])
FIRST = REPOSITORY / "docs/tutorial/quickstart.md"
GROUPS: dict[str, click.Command] = {
    "graphmill": main.command,
    "etl": etl.command,
    "train": train.command,
    "remap": remap.command,
}


SYNOPSIS = re.compile(r"\.\.\.|\w\||\[--")


class Block(NamedTuple):
    page: Path
    mark: str
    language: str
    text: str

    def commands(self) -> list[str]:
        """The lines that a user types, continued ones joined."""
        joined = self.text.replace("\\\n", " ")
        return [match[1] for match in re.finditer(r"^\$ (.*)$", joined, re.M)]

    def ours(self) -> list[str]:
        """The lines that begin as one of our commands, typed with a `$ ` or without, but for synopses."""
        joined = self.text.replace("\\\n", " ")
        pattern = r"^(?:\$ )?((?:dask-submit|graphmill|make|python -m (?:graphmill|etl|train|remap)) .*)$"
        return [match[1] for match in re.finditer(pattern, joined, re.M) if not SYNOPSIS.search(match[1])]


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"(?:^<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [Block(page, *each) for each in found]


ELSEWHERE = {"coming_from_recis.md"}  # run, with more checks, by a test of its own
RUN_PAGES = sorted(
    (page for page in PAGES if page.name not in ELSEWHERE and "run" in {each.mark for each in blocks(page)}),
    key=lambda page: (page != FIRST, page.name),
)
COMMANDS = [
    pytest.param(command, id=f"{page.name}: {command[:60]}")
    for page in PAGES
    for block in blocks(page)
    for command in block.ours()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    """Where the pages are run; what the quickstart makes is there for all others."""
    made = tmp_path_factory.mktemp("newcomer")
    run_page(FIRST, made, forked)
    return made


def run_page(page: Path, folder: Path, forked: Forks) -> None:
    for block in blocks(page):
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.mark == "run":
            texts = block.commands() if block.language == "console" else [block.text]
            for text in texts:
                words = shlex.split(text) if block.language == "console" else ["python", "-c", text]
                if words[0] in ("graphmill", "python"):
                    forked(*words, cwd=folder, has_report=page == FIRST)
                else:
                    subprocess.run(words, cwd=folder, timeout=600, check=True)


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(folder: Path, page: Path, forked: Forks) -> None:
    if page != FIRST:  # which the fixture has run
        run_page(page, folder, forked)


@pytest.mark.slow
def test_the_quickstart_ends_as_it_says_and_the_page_of_run_json_names_every_key(folder: Path) -> None:
    run = graphmill.open(str(folder / "output"))
    assert run.num_entities == {"customer": 6, "product": 7}
    assert run.neighbors("product", "pencil", k=1)[0].id == "paper"
    assert (folder / "output" / "report.html").exists()
    page = (REPOSITORY / "docs/reference/run_json.md").read_text()
    record = json.loads((folder / "output" / "run.json").read_text())
    keys = {*record, *(key for stage in record["stages"].values() for key in stage)}
    assert not {key for key in keys if not re.search(rf"\b{key}\b", page)}


def execute(notebook: str, folder: Path, **settings: str) -> list[dict[str, Any]]:
    """Execute a notebook of `examples` in a folder; return its cells."""
    # Through files: Jupyter looks for free ports, and the kernel takes them seconds later.
    program = f"""
import nbclient, nbformat, traitlets.config
book = nbformat.read({str(REPOSITORY / "examples" / notebook)!r}, 4)
by_files = traitlets.config.Config(KernelManager={{"transport": "ipc"}})
nbclient.NotebookClient(book, timeout=600, startup_timeout=600, config=by_files).execute()
nbformat.write(book, "executed.ipynb")
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), **settings}
    completed(sys.executable, "-c", program, cwd=folder, env=environment)
    cells: list[dict[str, Any]] = json.loads((folder / "executed.ipynb").read_text())["cells"]
    return cells


@pytest.mark.slow
def test_the_notebook_of_a_run_runs(folder: Path) -> None:
    execute("explore.ipynb", folder, GRAPHMILL_RUN=str(folder / "output"))


def write_densest(folder: Path, num_packages: int) -> None:
    """Write the demo's tables of the packages with most relations, and of those that the notebook names."""
    tables = {path.name: pd.read_parquet(path) for path in (REPOSITORY / "demo/debian").glob("*.parquet")}
    relations = tables["package_relations.parquet"]
    counts = pd.concat([relations["source"], relations["target"]]).value_counts()
    named = re.findall(r'\\"([\w-]+)\\"', (REPOSITORY / "examples/debian.ipynb").read_text())
    kept = {*counts.index[:num_packages], *named}
    for name, table in tables.items():
        for end in {"source", "target", "package"} & set(table.columns):
            table = table[table[end].isin(kept)]
        table.to_parquet(folder / name)


@pytest.mark.slow
def test_the_notebook_of_debian_runs(tmp_path: Path) -> None:
    write_densest(tmp_path, 600)
    for cells in (
        execute("debian.ipynb", tmp_path, DEBIAN_TABLES=str(tmp_path), DEBIAN_EPOCHS="2"),
        json.loads((REPOSITORY / "examples/debian.ipynb").read_text())["cells"],  # as it is stored
    ):
        outputs = [each for cell in cells for each in cell.get("outputs", [])]
        assert sum("image/png" in each.get("data", {}) for each in outputs) == 1
        told = "".join(outputs[-1]["data"]["text/plain"])
        accuracy = dict(re.findall(r"^(.*?) +(0\.[0-9]+)$", told, re.M))
        for known in ("number of edges", "number of edges, maintainer"):
            assert float(accuracy[f"{known} + vectors"]) > float(accuracy[known])


def test_stored_notebooks_are_clean_and_small() -> None:
    for path in (REPOSITORY / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert path.stat().st_size < 300_000
        for cell in cells:
            for output in cell.get("outputs", []):
                assert output["output_type"] != "error"
                assert output.get("name") != "stderr"
        assert all(cell["outputs"] for cell in cells[-1:] if cell["cell_type"] == "code")
        assert str(REPOSITORY) not in path.read_text()


def parse(words: list[str]) -> None:
    """Let click take the words, as far as to call the command.

    Raises:
        click.ClickException: they do not fit.
    """
    match words:
        case ["dask-submit", *rest]:
            inner = submit.command.make_context("dask-submit", rest).params
            if inner["script"] in submit.BUNDLED:
                descend(submit.BUNDLED[inner["script"]], list(inner["arguments"]))
        case ["python", "-m", name, *rest] if name in GROUPS:
            descend(GROUPS[name], rest)
        case ["graphmill", *rest]:
            descend(main.command, rest)


def descend(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    context = command.make_context(command.name, words, parent)  # a command keeps its first help option
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        _, chosen, rest = command.resolve_command(context, rest)
        descend(chosen, rest, context)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "options", terminal.TerminalOptions())
    words = shlex.split(command, comments=True)
    parse(words)
    for key, value in pairwise(words):
        if key == "--conf" and value.startswith("conf/"):
            assert (REPOSITORY / value).is_file(), value
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (REPOSITORY / "Makefile").read_text(), re.M)


def test_a_wrong_command_is_noticed() -> None:
    with pytest.raises(click.ClickException):
        parse(shlex.split("dask-submit pipeline.py --colour red"))
    with pytest.raises(click.ClickException):
        parse(shlex.split("python -m graphmill convert a b --format none"))


def test_links_lead_to_pages_that_exist() -> None:
    link = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)[^)]*\)")
    texts = {page: re.sub(r"```.*?```", "", page.read_text(), flags=re.S) for page in PAGES}
    found = [(page, target) for page, text in texts.items() for target in link.findall(text)]
    assert len(found) > 100
    assert not [(page.name, target) for page, target in found if not (page.parent / target).exists()]


def test_every_path_on_a_page_exists() -> None:
    """Checks paths that begin with a folder of the repository; a module may stand without its `.py`."""
    folders = r"graphmill|etl|train|remap|tests|docs|conf|demo|bench|docker|examples"
    path = re.compile(rf"(?<![\w/.}}-])(?:{folders})/[\w/.-]*\w")
    mentioned = {(page.name, name) for page in PAGES for name in path.findall(page.read_text())}
    assert not {
        (page, name)
        for page, name in mentioned
        if not name.endswith(".json")  # which commands write
        and not any((REPOSITORY / f"{name}{end}").exists() for end in ("", ".py"))
    }


def test_every_page_that_the_code_cites_exists() -> None:
    folders = ("bench", "conf", "demo", "docker", "etl", "graphmill", "remap", "tests", "train")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.*")]
    texts = {path: path.read_text() for path in files if path.suffix in {".py", ".yaml", ".cpp", ".sh"}}
    cited = {(path, page) for path, text in texts.items() for page in re.findall(r"\bdocs/[\w/]+\.md", text)}
    assert len(cited) > 30
    assert not [each for each in cited if not (REPOSITORY / each[1]).exists()]


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    folders = ("graphmill", "etl", "train", "remap")
    sources = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    texts = [path.read_text() for path in (*PAGES, *(REPOSITORY / "examples").glob("*.*"), *sources)]
    found = re.findall(r"graphmill\[([\w,]+)\]", "\n".join(texts))
    named = {name for names in found for name in names.split(",")}
    assert {"map", "notebook", "stores"} <= named <= {*extras}


def test_the_architecture_has_all_rooms_and_draws_the_contracts_between_them() -> None:
    page = (REPOSITORY / "docs/explanation/architecture.md").read_text()
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert with_rooms(page) == page, "make reference"
    for contract in [each for each in contracts if each["type"] == "layers"]:
        drawn = " -> ".join(each for each in contract["layers"] if each != "__main__")
        assert drawn in page, contract["name"]


def test_every_test_in_the_table_of_promises_exists() -> None:
    """Checks the last column of the table: files, and functions in them."""
    table = (REPOSITORY / "docs/explanation/promises.md").read_text()
    columns = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")][2:]
    for names in map(str.strip, columns):
        tests = re.findall(r"`([^`:]+)(?:::(\w+))?`", names)
        assert tests or not names
        for name, function in tests:
            path = REPOSITORY / name
            assert name.startswith("tests/"), name
            assert path.is_file(), name
            assert f"def {function}" in path.read_text(), f"{name}::{function}"


@pytest.mark.parametrize("program", ["pbg", "graphstorm", "recis"])
def test_every_line_of_what_does_not_carry_over_has_its_test(program: str) -> None:
    page = (REPOSITORY / "docs" / "how_to" / f"coming_from_{program}.md").read_text()
    section = page.partition("## What does not carry over\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 5
    tests: dict[str, str] = defaultdict(str)
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        tests[path.stem] += path.read_text()
    functions = set(re.findall(r"def (test_\w+)\(", "\n".join(tests.values())))
    for line in lines:
        named = re.findall(r"`(test_\w+)(?:\.py)?(?:::(test_\w+))?`", line)
        assert named, line
        for first, function in named:
            assert first in functions or first in tests, line
            assert not function or f"def {function}(" in tests[first], line


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


PAGE = REPOSITORY / "docs/how_to/coming_from_recis.md"


def test_a_user_of_recis_gets_vectors_and_returns(tmp_path: Path, forked: Forks) -> None:
    """From hashed ids to parquet by raw id; trained further with a new id; and back into RecIS' tables."""
    run_page(PAGE, tmp_path, forked)
    hashes = pq.read_table(tmp_path / "all-customers.parquet")
    id_of = dict(zip(hashes["name"].to_pylist(), hashes["hash"].to_pylist(), strict=True))
    products = [9001, 9002, -9003, 9004]

    before = RecisReader(tmp_path / "recis-run" / "ckpt_200")
    known = {("customer", name): number for name, number in id_of.items() if name != "donald"}
    known |= {("product", str(number)): number for number in products}
    found = read_rows(tmp_path / "by-raw-id" / "embeddings")
    assert found == {(kind, name): before.table(kind)[each].tolist() for (kind, name), each in known.items()}

    run = graphmill.open(str(tmp_path / "bought"))
    after = RecisReader(tmp_path / "for-recis")
    assert after.table("customer").keys() == set(id_of.values())
    assert after.table("product").keys() == set(products)
    for name, each in id_of.items():
        assert after.table("customer")[each].tolist() == run.vector("customer", name).tolist()
        if name != "donald":  # trained from RecIS' vector, not from a random one
            moved = (after.table("customer")[each] - before.table("customer")[each]).abs().max()
            assert 0 < moved < 3
    for each in products:
        assert after.table("product")[each].tolist() == run.vector("product", str(each)).tolist()
    assert set().union(*(after.owned("customer", rank, 3) for rank in range(3))) == set(id_of.values())

    same = RecisReader(tmp_path / "eight-shards")
    assert same.names() == before.names()
    for slot in ("embedding", "sparse_adam_exp_avg", "sparse_adam_exp_avg_sq"):
        for table in ("customer", "product"):
            old, new = before.table(table, slot), same.table(table, slot)
            assert all(torch.equal(old[each], new[each]) for each in old)
            assert old.keys() == new.keys()
