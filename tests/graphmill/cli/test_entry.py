"""The first line of a command: there before the imports."""

import subprocess
import sys

import pytest

from graphmill import __version__
from graphmill.cli.entry import first_line

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
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"graphmill {__version__}: pipeline, configuration shop.yaml\n", done.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("etl", ["etl", "--conf", "a.yaml"], f"graphmill {__version__}: etl, configuration a.yaml"),
        ("train", ["train"], f"graphmill {__version__}: train"),
        ("train", ["train", "--help"], ""),
        ("etl", ["etl", "--quiet"], ""),
        ("etl", ["etl", "--json-logs"], ""),
        ("schema", ["schema"], ""),
        ("", ["--version"], ""),
    ],
)
def test_only_runs_say_what_they_run(
    name: str, arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHMILL_CONF", raising=False)
    assert first_line(name, ["graphmill", *arguments]) == expected
    if expected:
        monkeypatch.setenv("GRAPHMILL_CONF", "b.yaml")
        assert first_line(name, ["graphmill", name]).endswith(f"{name}, configuration b.yaml")
    monkeypatch.setenv("_GRAPHMILL_COMPLETE", "bash_complete")
    assert first_line(name, ["graphmill", *arguments]) == ""


@pytest.mark.slow
def test_the_version_is_told_by_the_command() -> None:
    command = [sys.executable, "-m", "graphmill", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert __version__ in done.stdout
