"""Commands start at once: the first line is there before the imports, and nothing is imported for nothing."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from graphmill import __version__
from graphmill.cli import main, train
from graphmill.cli.entry import first_line
from graphmill.cli.exit_codes import decoded
from graphmill.cli.stages import STAGES
from graphmill.config import Config
from graphmill.config.sections import SECTIONS
from graphmill.errors import BadInputError
from tests import REPOSITORY
from tests.forked import Forks
from tests.graphmill.ask.predict.world import write_world
from tests.processes import completed

HEAVY = ("torch", "bokeh", "openTSNE", "sklearn", "scipy", "sympy", "etl.tables.read")
PROGRAM = """
import sys
from graphmill.cli.entry import graphmill
for step in sys.argv[1:]:
    sys.argv[1:] = step.split()
    try:
        exec(step, {}) if step.startswith("import ") else graphmill()
    except SystemExit as end:
        assert not end.code
    print("imported", *sys.modules)
"""
# Steps of one process, and what is not imported after each.
DO_WITHOUT = {
    "--help": ("pandas", "pyarrow.dataset", "cryptography", "faiss"),
    "import train.__main__, train.job, graphmill.ask.evaluate.job": ("pandas", "faiss", "numba"),
    "import remap.graphstorm.job, graphmill.cli.remap": ("pandas", "faiss", "numba"),
    "predict RUN --relation likes --to RUN/answers": ("faiss",),
    "export RUN --no-loss --to RUN/vectors": ("faiss",),
}


@pytest.mark.slow
def test_modules_that_commands_checks_and_small_jobs_do_without(tmp_path: Path) -> None:
    """The workers alone need torch, for training and for an evaluation."""
    write_world(tmp_path)
    steps = [step.replace("RUN", str(tmp_path)) for step in DO_WITHOUT]
    told = completed(sys.executable, "-c", PROGRAM, *steps).stdout.splitlines()
    imported = [line.split() for line in told if line.startswith("imported ")]
    for modules, others in zip(imported, DO_WITHOUT.values(), strict=True):
        assert "graphmill.cli.main" in modules
        assert {*modules}.isdisjoint([*HEAVY, *others])


# Runs a command as where the packages in argv[1] are not installed, and names our modules that need them.
WITHOUT = """
import importlib, pkgutil, sys
missing = sys.argv.pop(1).split()
class Missing:
    def find_spec(name, path, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
for package in map(importlib.import_module, ("graphmill", "etl", "train", "remap")):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] in missing:
                print("needs more:", module.name)
from graphmill.cli.entry import graphmill
graphmill()
"""
NEED_MORE = {"graphmill.cluster.ssh", "graphmill.monitoring.metrics", "etl.tables.lake.iceberg_scan"}


@pytest.mark.slow
def test_a_run_needs_no_optional_package(tmp_path: Path) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [text for extra, texts in extras.items() if extra != "dev" for text in texts]
    names = {re.split(r"[\[<>=,]", text)[0] for text in texts}
    names -= {"attrs", "setuptools", "pandas"}  # other packages of a plain installation bring these
    packages = packages_distributions().items()
    missing = [module for module, of in packages if names & {name.lower() for name in of}]
    assert {"asyncssh", "deltalake", "faiss", "openTSNE", "prometheus_client", "pyiceberg"} <= {*missing}
    (tmp_path / "edges.tsv").write_text("".join(f"{n}\tlikes\t{n % 7}\n" for n in range(99)))
    (tmp_path / "run.yaml").write_text(
        "output: run\nnum_epochs: 1\nentities: {user: {}, item: {}}\n"
        "relations: [{name: likes, lhs: user, rhs: item}]\n"
        "etl: {tables: [{path: edges.tsv, lhs: 0, rhs: 2, relation: likes, header: false}]}\n"
    )
    words = ["-W", "ignore", "-c", WITHOUT, " ".join(missing), "pipeline", "--conf", "run.yaml"]
    done = completed(sys.executable, *words, cwd=tmp_path)
    assert {*re.findall("needs more: (.*)", done.stdout)} == NEED_MORE
    assert (tmp_path / "run/report.html").exists()


SHOWS_IMPORTS = """
import sys
from graphmill.cli import entry
heavy = {"click", "dask", "distributed", "numpy", "pyarrow", "pydantic", "rich", "torch", "yaml"}
class Write:
    def write(self, text):
        sys.__stdout__.write(text + " ".join(sorted(heavy & set(sys.modules))))
        sys.__stdout__.flush()
        raise SystemExit(0)
    def flush(self): pass
sys.stderr, sys.argv = Write(), sys.argv[1:]
entry.{entry}()
"""


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("graphmill", ["graphmill", "pipeline", "--conf", "shop.yaml"]),
        ("dask_submit", ["dask-submit", "--master", "local[2]", "pipeline.py", "--conf=shop.yaml"]),
    ],
)
def test_the_first_line_comes_before_the_imports(entry: str, arguments: list[str]) -> None:
    program = SHOWS_IMPORTS.replace("{entry}", entry)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"graphmill {__version__}: pipeline, configuration shop.yaml\n", done.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("etl", ["etl", "--conf", "a.yaml"], f"graphmill {__version__}: etl, configuration a.yaml"),
        ("train", ["train"], f"graphmill {__version__}: train"),
        ("fold-in", ["fold-in", "output/shop"], f"graphmill {__version__}: fold-in"),
        ("train", ["train", "--help"], ""),
        ("etl", ["etl", "--quiet"], ""),
        ("etl", ["etl", "--json-logs"], ""),
        ("", ["--version"], ""),
    ],
)
def test_only_runs_say_what_they_run(name, arguments, expected, monkeypatch):
    monkeypatch.delenv("GRAPHMILL_CONF", raising=False)
    assert first_line(name, ["graphmill", *arguments]) == expected
    if expected:
        monkeypatch.setenv("GRAPHMILL_CONF", "b.yaml")
        assert first_line(name, ["graphmill", name]).endswith(f"{name}, configuration b.yaml")
    monkeypatch.setenv("_GRAPHMILL_COMPLETE", "bash_complete")
    assert first_line(name, ["graphmill", *arguments]) == ""


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_words_are_utf_8(word: str) -> None:
    as_in_the_c_locale = word.encode().decode("ascii", "surrogateescape")
    assert decoded([word, as_in_the_c_locale]) == [word, word]
    with pytest.raises(BadInputError, match=r"expected UTF-8, found b'n\\xff'"):
        decoded(["x", os.fsdecode(b"n\xff")])


@pytest.mark.slow
def test_a_command_in_the_c_locale(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    rows = {"id": ["né", "nü"], "vector": [[1.0, 0.0], [0.9, 0.1]]}
    pq.write_table(pa.table(rows), tmp_path / "n/part-00000.parquet")
    words = ["neighbors", "--embeddings", str(tmp_path), "--id", "né"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(REPOSITORY)}

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "graphmill", *words]
        return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)

    assert "nü" in run(*words).stdout.decode()
    refused = run("check", "--conf", "cé.yaml")
    assert refused.returncode == 2
    assert b"set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in refused.stderr


@pytest.mark.parametrize("group", [main.command, train.command])
def test_no_description_of_a_command_is_cut(group: click.Group) -> None:
    shown = CliRunner().invoke(group, ["--help"], terminal_width=80).output.partition("Commands:\n")[2]
    assert len(shown.splitlines()) >= len(group.commands)
    assert [line for line in shown.splitlines() if not line.endswith(".") or line.endswith("...")] == []
    assert __version__ in CliRunner().invoke(main.command, ["--version"]).output


def test_help_of_all_commands_changes_on_purpose_only(forked: Forks) -> None:
    """The file is a text to compare with: `make reference` writes it anew."""
    # In a process of its own: click keeps the options of help that a test has asked a lone command for.
    shown = forked("python", REPOSITORY / "docs/commands_page.py").stdout
    assert shown == Path(__file__).with_name("help.txt").read_text()
    assert "null:" not in shown  # a word of YAML
    for help_text in re.split(r"\nUsage: ", shown)[1:]:
        assert "COMMAND [ARGS]" in help_text or re.search("^  Examples?:", help_text, re.M), help_text


def test_every_stage_has_its_section() -> None:
    names = [stage.name for stage in STAGES]
    assert names == list(SECTIONS)[: len(STAGES)]
    assert SECTIONS.keys() < Config.model_fields.keys()
