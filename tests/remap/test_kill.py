"""Kills and full disks: what was there stays whole, and the next run finishes."""

import json
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

import pytest
from distributed import Client

from graphmill.run import lock, lock_file
from remap import job
from tests import REPOSITORY
from tests.processes import DEADLINE_S, running
from tests.remap import graph
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.slow

# Many small row groups: slow enough to be met in the middle.
COUNTS = {"user": [2000] * 12, "item": [3]}
SETTINGS: dict[str, Any] = {"batch_rows": 20}

# Kills its own process right before the n-th renaming of a folder of embeddings.
DIE_AT_MOVE = """
import os, signal, sys
from graphmill.cli import exit_codes
from graphmill.storage import fs, name
from remap.command import command

real_move = fs.move

def move(source, target):
    global moves_left
    if "embeddings" in name(source):
        if not moves_left:
            os.kill(os.getpid(), signal.SIGKILL)
        moves_left -= 1
    real_move(source, target)

if __name__ == "__main__":  # not in the workers, which import this file too
    moves_left = int(sys.argv.pop(1))
    fs.move = move
    exit_codes.main(command)
"""


@pytest.fixture
def output(tmp_path: Path, client: Client) -> str:
    """A run with embeddings of version 1, and a checkpoint that has gone on to version 2."""
    output = str(tmp_path / "run")
    graph.write_entities(output, COUNTS)
    graph.write_checkpoint(output, COUNTS)
    job.run(graph.configured(output, COUNTS), client)
    graph.write_checkpoint(output, COUNTS, version=2)
    return output


@contextmanager
def remapping(output: str, *command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m remap` (or another `command`) in a process group of its own, of which nothing is left.

    What it says goes to the file that `messages` reads.
    """
    conf = Path(output, "conf.yaml")
    conf.write_text(json.dumps(graph.configured(output, COUNTS, **SETTINGS).model_dump(mode="json")))
    arguments = [sys.executable, *(command or ("-m", "remap")), "--conf", str(conf), "--master", "local[1]"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with running(arguments, Path(output, "stderr.txt"), env=environment, **options) as process:
        yield process


def messages(output: str) -> str:
    return Path(output, "stderr.txt").read_text()


def hidden(output: str) -> list[str]:
    names = [path.name for path in Path(output).iterdir() if path.name.startswith(".")]
    # A killed command leaves its locks behind.
    return [name for name in names if not name.endswith(lock.NAME) and not name.startswith(lock_file.LIFE)]


def check_next_run(output: str, client: Client) -> None:
    config = graph.configured(output, COUNTS)
    job.run(config, client)
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(COUNTS, version=2)
    assert hidden(output) == []


@pytest.mark.parametrize("num_parts", [1, 8])
def test_killed_while_writing(client: Client, output: str, num_parts: int) -> None:
    before = graph.snapshot(Path(output, "embeddings"))
    sign = Path(output, "held")
    with remapping(
        output, "-m", "tests.held", "part-*.parquet", str(num_parts), str(sign), "remap"
    ) as process:
        wait_until(sign.exists, DEADLINE_S)
        assert len(found_in(Path(output), ".embeddings.tmp-*/*/part-*")) == num_parts
        process.kill()
        process.wait()
    assert graph.snapshot(Path(output, "embeddings")) == before
    check_next_run(output, client)


@pytest.mark.parametrize("num_moves", [0, 1])
def test_killed_while_committing(client: Client, output: str, tmp_path: Path, num_moves: int) -> None:
    before = graph.snapshot(Path(output, "embeddings"))
    script = tmp_path / "die.py"
    script.write_text(DIE_AT_MOVE)
    with remapping(output, str(script), str(num_moves)) as process:
        assert process.wait(DEADLINE_S) == -signal.SIGKILL, messages(output)
    # Before the first renaming the old folder is there; between the two none is, and the old one is aside.
    found = graph.snapshot(Path(output, "embeddings"))
    aside = [graph.snapshot(path) for path in Path(output).glob(".embeddings.old-*")]
    assert (found, aside) == ((before, []) if num_moves == 0 else ({}, [before]))
    check_next_run(output, client)


def test_disk_full(client: Client, output: str) -> None:
    before = graph.snapshot(Path(output, "embeddings"))

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    assert len(before["user/part-00000.parquet"]) < 60_000
    with remapping(output, preexec_fn=limit_file_size) as process:
        assert process.wait(DEADLINE_S) == 1, messages(output)
    assert re.search(r"^error: .*/part-.*: cannot write: .*File too large", messages(output), re.MULTILINE)
    assert graph.snapshot(Path(output, "embeddings")) == before
    check_next_run(output, client)
