"""Commands in processes of their own, to be killed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# What is removed in the end is not waited for: a killed process's workers notice by themselves.
DEADLINE_S = 240  # a machine may be busy


@contextmanager
def running(arguments: Sequence[Any], stderr_path: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, of which nothing is left afterwards."""
    with stderr_path.open("wb") as stderr:
        process = subprocess.Popen(
            [str(each) for each in arguments], start_new_session=True, stderr=stderr, **options
        )
        try:
            yield process
            wait_until(lambda: not _group_lives(process.pid))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.002)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
