"""Virtual environments of other projects beside the repository's, and programs that run in them.

torch, numpy and the like are taken from the project's own environment: nothing big is installed twice.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests import REPOSITORY
from tests.finished import environment
from tests.forked import Forks
from tests.processes import completed

VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "DGLBACKEND": "pytorch",
    "PYTHONPATH": str(REPOSITORY),
}


class NotInstallableError(Exception):
    """A project cannot be installed or imported here."""


def make(name: str, *installs: Sequence[str], sites: Sequence[str] = (), check: str) -> Path:
    """Make an environment in the folder `name`, and anew when this Python or an argument changes; its python.

    `installs` are arguments of pip, for one call after another, `sites` folders of further packages, `check`
    is a module that can be imported then. Raises NotInstallableError where a step fails, or takes too long.
    """
    folder = REPOSITORY / name
    python, marker = folder / "bin" / "python", folder / "installed.json"
    wanted = json.dumps([sys.version, sys.prefix, sites, installs, check])
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side: one installs, the others wait
        if not marker.exists() or marker.read_text() != wanted:
            try:
                environment(folder, *installs, sites=sites)
                completed(python, "-c", f"import {check}", env=os.environ | VARIABLES)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                raise NotInstallableError(str(error)[-500:]) from error
            marker.write_text(wanted)
    return python


def told(python: Path, modules: Sequence[str], folder: Path, *words: str) -> str:
    """The output of a program in this environment and folder: `-m MODULE`, or a script.

    A process that has imported the modules, and ends with this one, runs it in a fork.
    """
    ended = _forks(python, tuple(modules))("python", *words, cwd=folder)
    return ended.stderr + ended.stdout


@cache
def _forks(python: Path, modules: tuple[str, ...]) -> Forks:
    return Forks(python, ("tests.interop.forking", *modules), **VARIABLES)
