"""Commands that die like a machine without power, at one of their renamings: `python -m tests.killed < RUNS`.

RUNS is JSON: a list of [number, arguments of `graphmill`]. Each command runs in a process of its own, forked
from this one, which has imported what commands import; its Dask workers are threads of that process. Before
its renaming of a file or folder of that number, from 0 on, the process is killed; number -1 kills none.

Prints, as JSON, for each command its exit code, negative if a signal ended it, its renamings, and what it
wrote.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed

from graphmill import cluster, storage
from graphmill.cli import exit_codes
from graphmill.storage import fs

# What commands import when they need it.
OF_COMMANDS = (
    "torch.fx.experimental.symbolic_shapes",  # what torch itself imports for the first gradient
    "openTSNE",
    "graphmill.cli.main",
    "graphmill.report.page",
    "train.run.trainer",
    "train.tables.folding",
    "train.evaluation.evaluate",
    "etl.job",
    "remap.job",
)


def kill_at(number: int, renamings: Path) -> None:
    """Have this process count its renamings in a file, and end at one of them."""
    really_move, lock = fs.move, threading.Lock()

    def move(source: str, target: str) -> None:
        with lock, renamings.open("ab", buffering=0) as stream:
            if stream.tell() == number:
                os.kill(os.getpid(), signal.SIGKILL)
            stream.write(b".")
        really_move(source, target)

    storage.move = fs.move = move


def run(number: int, arguments: Sequence[str], folder: Path) -> list[Any]:
    """Run a command in a process of its own; its entry of what is printed."""
    renamings, written = folder / "renamings", folder / "written"
    for path in (renamings, written):
        path.write_bytes(b"")
    child = os.fork()
    if not child:
        with written.open("wb") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        kill_at(number, renamings)
        os._exit(_command(arguments))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [code, renamings.stat().st_size, written.read_text()]


def _command(arguments: Sequence[str]) -> int:
    from graphmill.cli import main as cli

    @contextmanager
    def connect(*_: Any) -> Iterator[distributed.Client]:
        with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=":0") as client:
            yield client

    cluster.connect = connect
    return exit_codes.exit_code(lambda: cli.command.main(list(arguments), standalone_mode=False))


def main() -> None:
    """Run the commands that stdin names."""
    for name in OF_COMMANDS:
        importlib.import_module(name)
    runs = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        found = [run(number, arguments, Path(folder)) for number, arguments in runs]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
