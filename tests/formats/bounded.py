"""Running code on hostile files in a process of its own, to see how much memory it takes."""

import os
import resource
import subprocess
import sys
from dataclasses import dataclass

LIMIT_BYTES = 1 << 30
"""What hostile files of a few kilobytes may take, the libraries' own 600 MB included."""
_CEILING_BYTES = 6 << 30  # so that a test that fails does not take the machine along


@dataclass(frozen=True)
class Done:
    """How a process has ended: its exit code, what it told, the most memory that it had."""

    code: int
    told: str
    peak_bytes: int


def run(arguments: list[str]) -> Done:
    """Run Python with `arguments`, bounded far above what it should take."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_CEILING_BYTES, _CEILING_BYTES))

    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=bound,
    )
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    return Done(process.returncode, told, usage.ru_maxrss << 10)


def check_refused(statement: str, *arguments: str, message: str) -> str:
    """Check that the statement is refused as an error of ours, in bounded memory; what it told.

    It finds the `arguments` as `args`.
    """
    code = (
        "import sys\nfrom graphmill.errors import BadInputError\nargs = sys.argv[1:]\n"
        f"try:\n    {statement}\nexcept BadInputError as error:\n    print(error)\n    sys.exit(2)\n"
    )
    done = run(["-c", code, *arguments])
    assert done.code == 2, done.told[-2000:]
    assert message in done.told
    assert done.peak_bytes < LIMIT_BYTES
    return done.told
