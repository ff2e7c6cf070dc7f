"""Code on hostile files runs in its own process, to measure its memory."""

import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 1 << 30
"""Limit of memory for hostile files of a few kilobytes, including 600 MB of libraries."""
_CEILING_BYTES = 6 << 30  # so that a test that fails does not take the machine along


@dataclass(frozen=True)
class Done:
    """How a process has ended: its exit code, what it told, the most memory that it had."""

    code: int
    told: str
    peak_bytes: int


_TELL_PEAK = """
import atexit, pathlib
atexit.register(lambda: pathlib.Path({!r}).write_bytes(pathlib.Path("/proc/self/status").read_bytes()))
"""


def run(arguments: list[str]) -> Done:
    """Run Python with `arguments`, bounded far above what it should take; the peak is told of `-c` alone."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_CEILING_BYTES, _CEILING_BYTES))

    with tempfile.NamedTemporaryFile() as status:
        if arguments[0] == "-c":  # what the system tells of a child counts the memory of its parent too
            arguments = ["-c", _TELL_PEAK.format(status.name) + arguments[1], *arguments[2:]]
        done = subprocess.run(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            preexec_fn=bound,
        )
        lines = Path(status.name).read_text().splitlines()
    peaks = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")]
    return Done(done.returncode, done.stdout, peaks[0] if peaks else _CEILING_BYTES)


def check_refused(statement: str, *arguments: str, message: str) -> None:
    """Check that the statement is refused for each argument, as an error of ours, in bounded memory.

    It finds the argument as `each`.
    """
    code = (
        "import sys\nfrom graphmill.errors import BadInputError\n"
        "for each in sys.argv[1:]:\n"
        f"    try:\n        {statement}\n"
        "    except BadInputError as error:\n        print('refused:', error)\n"
    )
    done = run(["-c", code, *arguments])
    assert done.code == 0, done.told[-2000:]
    assert done.told.count("refused: ") == done.told.count(message) == len(arguments), done.told
    assert done.peak_bytes < LIMIT_BYTES
