"""A module imported beside the command: by a thread, or by a process forked from the workers' server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill.cli.aside import Aside
from tests import REPOSITORY

FORKED = """
import os
from graphmill import forkserver

if __name__ == "__main__":
    forkserver.start(("json",), ("tests.no_such_module",))
    from graphmill.aside import Aside

    mine, missing, dying = Aside("os"), Aside("tests.no_such_module"), Aside("os")
    os.environ["GRAPHMILL_TOLD"] = "late"
    mine.ask("getenv", "GRAPHMILL_TOLD")
    missing.ask("anything")
    dying.ask("_exit", 1)
    print(mine.answer())
    for aside, kind in ((missing, ModuleNotFoundError), (dying, EOFError)):
        try:
            aside.answer()
        except kind as error:
            print(type(error).__name__)
    other = Aside("os")
    other.ask("nice", 0)
    print(other.answer(), os.nice(0))
"""


def test_in_a_thread() -> None:
    aside = Aside("json")
    aside.ask("dumps", [1])
    assert aside.answer() == "[1]"
    aside = Aside("tests.no_such_module")
    aside.ask("anything")
    with pytest.raises(ModuleNotFoundError):
        aside.answer()


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout.split() == ["late", "ModuleNotFoundError", "EOFError", "19", str(os.nice(0))], (
        done.stderr
    )
