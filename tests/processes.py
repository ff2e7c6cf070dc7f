"""Commands in processes of their own, to be killed."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests import REPOSITORY
from tests.waiting import wait_until

# What is removed in the end is not waited for: a killed process's workers notice by themselves.
DEADLINE_S = 240  # a machine may be busy

DASK_SUBMIT = str(Path(sys.executable).with_name("dask-submit"))
# A script for dask-submit. Python sleeps on where a signal comes just before a sleep: sleeps are short.
SLEEPER = """
    import os, time
    from distributed import get_client
    client = get_client()
    print("workers", *client.run(os.getpid).values(), flush=True)
    while True:
        time.sleep(0.1)
"""


def executable(path: Path, text: str) -> Path:
    """A shell script."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def heed_sigint() -> None:
    """Undo what a child inherits where the suite itself runs in the background: that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def alive(pid: int) -> bool:
    """Tell whether a process runs; an ended one without a parent stays listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return False


@contextmanager
def running(arguments: Sequence[Any], stderr_path: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, of which nothing is left afterwards."""
    with stderr_path.open("wb") as stderr:
        process = subprocess.Popen(
            [str(each) for each in arguments], start_new_session=True, stderr=stderr, **options
        )
        try:
            yield process
            wait_until(lambda: not _group_lives(process.pid), DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def completed(*words: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end, which has this exit code."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@contextmanager
def speaking(*words: object, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with pipes, and the first line that it writes; its input ends with the block."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "cwd": REPOSITORY,
    }
    with subprocess.Popen([*map(str, words)], **(pipes | options)) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def _group_lives(group: int) -> bool:
    """Whether a process of the group runs; without a parent to collect it, an ended one stays listed."""
    for each in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(each.pid) == group and each.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file that this process writes becomes longer, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
