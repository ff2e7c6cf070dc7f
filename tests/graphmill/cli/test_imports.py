"""Commands import nothing for nothing: they take as long as what they import."""

import subprocess
import sys
from pathlib import Path

import pytest

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
