"""Killed commands and workers, full disks: whatever was there is still there, and the next run finishes."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from remap.graphstorm import commit
from tests import REPOSITORY
from tests.processes import DEADLINE_S, running
from tests.remap.saved import Cli, Tree, snapshot
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.slow

# What happens to the worker that writes the third table: killed, the first time or every time; or it waits.
DIE_WRITING = """
import os, signal, sys, time
from pathlib import Path
from graphmill.cli import exit_codes
from remap.graphstorm import job

real_write = job.write_table

def write_table(output, *args):
    if output.path.endswith("_00002"):
        with open(os.environ["DIARY"], "a") as diary:
            diary.write("x")
        while os.environ["DIE"] == "later":
            time.sleep(0.1)
        if os.environ["DIE"] == "always" or len(Path(os.environ["DIARY"]).read_text()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return real_write(output, *args)

if __name__ == "__main__":
    import remap.__main__
    import die  # the workers find the function by its name
    job.write_table = die.write_table
    exit_codes.main(remap.__main__.command)
"""


@pytest.fixture
def expected(tree: Tree) -> dict[str, list[float]]:
    """Embeddings to be remapped into many tables; what they should be."""
    tree.write_map("user", 400)
    tree.write_emb_info(["user"], 2)
    return tree.write_embeddings("user", [200, 200])


@contextmanager
def remapping(tree: Tree, *command: Any, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, *(command or ("-m", "remap")), "--master", "local[2]"]
    arguments += tree.arguments("--output-chunk-size", 10)
    environment = os.environ | {"PYTHONPATH": f"{tree.root}:{REPOSITORY}"} | options.pop("variables", {})
    with running(arguments, tree.root / "stderr.txt", env=environment, **options) as process:
        yield process


@contextmanager
def remapping_at_length(tree: Tree) -> Iterator[subprocess.Popen[bytes]]:
    """A command one of whose workers is at its third table, and stays there."""
    (tree.root / "die.py").write_text(DIE_WRITING)
    variables = {"DIE": "later", "DIARY": str(tree.root / "diary")}
    with remapping(tree, tree.root / "die.py", variables=variables) as process:
        wait_until(lambda: (tree.root / "diary").exists() and len(written(tree)) >= 2, DEADLINE_S)
        assert process.poll() is None
        yield process


def messages(tree: Tree) -> str:
    return (tree.root / "stderr.txt").read_text()


def written(tree: Tree) -> list[Path]:
    return found_in(tree.emb / commit.WORK / "files", "**/embed-*.parquet")


def check_next_run(tree: Tree, cli: Cli, expected: dict[str, list[float]]) -> None:
    assert cli(*tree.arguments("--output-chunk-size", 10)) == 0
    assert tree.embeddings() == expected
    assert tree.inputs() == {}
    assert not (tree.emb / commit.WORK).exists()


def test_killed_while_writing(tree: Tree, cli: Cli, expected: dict[str, list[float]]) -> None:
    before = tree.inputs()
    with remapping_at_length(tree) as process:
        process.kill()
        process.wait()
    assert tree.inputs() == before
    assert tree.embeddings() == {}
    check_next_run(tree, cli, expected)


def test_terminated_while_writing(tree: Tree, cli: Cli, expected: dict[str, list[float]]) -> None:
    before = tree.inputs()
    with remapping_at_length(tree) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM, messages(tree)
    assert tree.inputs() == before
    assert tree.embeddings() == {}
    check_next_run(tree, cli, expected)


@pytest.mark.parametrize("die", ["once", "always"])
def test_a_killed_worker(tree: Tree, cli: Cli, expected: dict[str, list[float]], die: str) -> None:
    (tree.root / "die.py").write_text(DIE_WRITING)
    before = tree.inputs()
    variables = {"DIE": die, "DIARY": str(tree.root / "diary")}
    with remapping(tree, tree.root / "die.py", variables=variables) as process:
        code = process.wait(DEADLINE_S)
    if die == "once":
        assert code == 0, messages(tree)
        assert tree.embeddings() == expected
        assert tree.inputs() == {}
        return
    assert code == 1
    # One that dies while it is started anew is lost to Dask for good.
    died = r"^error: remapping: (the task's worker died \d times|all workers died)"
    assert re.search(died, messages(tree), re.MULTILINE)
    assert tree.inputs() == before
    assert tree.tables() == []
    check_next_run(tree, cli, expected)


def test_disk_full(tree: Tree, cli: Cli, expected: dict[str, list[float]]) -> None:
    before = snapshot(tree.emb)
    # Less than one table takes, more than the journal of progress that goes to stderr.
    with remapping(tree, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))) as process:
        assert process.wait(DEADLINE_S) == 1
    assert snapshot(tree.emb) == before
    check_next_run(tree, cli, expected)


def test_no_process_and_no_scratch_is_left(
    tree: Tree, expected: dict[str, list[float]], tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    with remapping(tree, variables={"TMPDIR": str(tmp_path / "tmp")}) as process:
        assert process.wait(DEADLINE_S) == 0, messages(tree)
    left = list((tmp_path / "tmp").rglob("graphmill-remap-*/*"))
    assert left == []
    assert not psutil.pid_exists(process.pid)
