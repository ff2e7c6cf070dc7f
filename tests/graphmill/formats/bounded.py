"""Memory of this process; code on hostile files runs in a process of its own, to measure its memory."""

import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

LIMIT_BYTES = 1 << 30
"""Limit of memory for hostile files of a few kilobytes, including 600 MB of libraries."""
_CEILING_BYTES = 6 << 30  # so that a test that fails does not take the machine along


def data_bytes() -> int:
    """Bytes that count against RLIMIT_DATA: what malloc and anonymous mappings have reserved."""
    return _bytes("VmData", Path("/proc/self/status"))


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most bytes in memory that are of no file, beyond those at the start: the list's only number."""
    own, most, done = Path("/proc/self/status"), [0], threading.Event()
    before = _bytes("RssAnon", own)

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], _bytes("RssAnon", own) - before)

    threading.Thread(target=watch, daemon=True).start()
    yield most
    done.set()


def _bytes(name: str, status: Path, default: int = 0) -> int:
    lines = status.read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), default)


class Done(NamedTuple):
    """How a process has ended: its exit code, what it told, the most memory that it had."""

    code: int
    told: str
    peak_bytes: int


_TELL_PEAK = """
import atexit, pathlib
atexit.register(lambda: pathlib.Path({!r}).write_bytes(pathlib.Path("/proc/self/status").read_bytes()))
"""


def run(code: str, *arguments: object) -> Done:
    """Run code of Python, bounded far above what it should take."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_CEILING_BYTES, _CEILING_BYTES))

    with tempfile.NamedTemporaryFile() as status:
        # what the system tells of a child counts the memory of its parent too
        words = [sys.executable, "-c", _TELL_PEAK.format(status.name) + code, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(words, check=False, preexec_fn=bound, **pipes)
        return Done(done.returncode, done.stdout, _bytes("VmHWM", Path(status.name), _CEILING_BYTES))
