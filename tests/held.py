"""A command one of whose workers stops at a certain file, so that a test that kills something comes in time.

python -m tests.held PATTERN COUNT SIGN COMMAND ...     COMMAND is a module, or the path of a script
"""

import os
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.cli import session
from graphmill.storage import fs


def hold(pattern: str, number: int, sign: str) -> None:
    """Have this process stop when the `number`-th file of such a name has got its name.

    Of several processes the first stops, and stays so while the file `sign` is there, with its process id.
    """
    really_move, numbers = fs.move, count(1)

    def move(source: str, target: str) -> None:
        really_move(source, target)
        is_it = fnmatch(storage.name(target), pattern) and next(numbers) == number
        if is_it and storage.create_text(sign, str(os.getpid())):
            while Path(sign).exists():
                time.sleep(0.1)

    storage.move = fs.move = move


def main() -> None:
    """Run the command, its workers with `hold`."""
    pattern, number, sign, *sys.argv = sys.argv[1:]
    really_connect = cluster.connect

    @contextmanager
    def connect(*args: Any, **options: Any) -> Iterator[Client]:
        with really_connect(*args, **options) as client:
            client.run(hold, pattern, int(number), sign)
            yield client

    cluster.connect = connect
    session.write_report = lambda *_: None  # it takes as long as two stages
    command = sys.argv[0]
    if Path(command).exists():
        runpy.run_path(command, run_name="__main__")
    else:
        runpy.run_module(command, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from tests import held  # workers find functions by their module's name

    held.main()
