"""Commands import nothing for nothing: they take as long as what they import."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.graphmill.ask.predict.world import write_world

HEAVY = ("torch", "bokeh", "openTSNE", "sklearn", "scipy", "sympy", "etl.tables.read")
PROGRAM = """
import sys
from graphmill.cli.entry import graphmill
try:
    graphmill()
finally:
    sys.stderr.write("".join(f"imported {name}\\n" for name in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["--help"], ["pandas", "pyarrow.dataset", "cryptography", "faiss"]),
        (["predict", "RUN", "--relation", "likes", "--to", "RUN/answers"], ["faiss"]),
        (["export", "RUN", "--no-loss", "--to", "RUN/vectors"], ["faiss"]),
    ],
    ids=lambda each: each[0],
)
def test_modules_that_a_command_does_without(tmp_path: Path, words: list[str], others: list[str]) -> None:
    if "RUN" in words:
        write_world(tmp_path)
    words = [word.replace("RUN", str(tmp_path)) for word in words]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = {line.removeprefix("imported ") for line in done.stderr.splitlines()}
    assert "graphmill.cli.main" in imported
    assert imported.isdisjoint([*HEAVY, *others])


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
NEED_MORE = {
    "graphmill.cluster.ssh",
    "graphmill.monitoring.metrics",
    "etl.tables.lake.iceberg_filters",
    "etl.tables.lake.iceberg_storage",
}


@pytest.mark.slow
def test_a_run_needs_no_optional_package(tmp_path: Path) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        re.split(r"[\[<>=,]", text)[0] for extra, texts in extras.items() if extra != "dev" for text in texts
    }
    names -= {"attrs", "setuptools", "pandas"}  # other packages of a plain installation bring these
    missing = [
        module for module, of in packages_distributions().items() if names & {name.lower() for name in of}
    ]
    assert {"asyncssh", "deltalake", "faiss", "openTSNE", "prometheus_client", "pyiceberg"} <= {*missing}
    (tmp_path / "edges.tsv").write_text("".join(f"{n}\tlikes\t{n % 7}\n" for n in range(99)))
    (tmp_path / "run.yaml").write_text(
        "output: run\nnum_epochs: 1\nentities: {user: {}, item: {}}\n"
        "relations: [{name: likes, lhs: user, rhs: item}]\n"
        "etl: {tables: [{path: edges.tsv, lhs: 0, rhs: 2, relation: likes, header: false}]}\n"
    )
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        WITHOUT,
        " ".join(missing),
        "pipeline",
        "--conf",
        "run.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {*re.findall("needs more: (.*)", done.stdout)} == NEED_MORE
    assert (tmp_path / "run/report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        "train.__main__, train.job, graphmill.ask.evaluate.job",  # the workers alone need torch
        "remap.job, remap.graphstorm.job, graphmill.cli.remap",
    ],
)
def test_modules_that_checks_and_small_jobs_do_without(modules: str) -> None:
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "pyarrow" in imported
    assert {*HEAVY, "pandas", "faiss", "numba"}.isdisjoint(imported)
