"""Virtual environments of other projects beside the repository's, and programs that run in them.

torch, numpy and the like are taken from the project's own environment: nothing big is installed twice.
"""

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests import REPOSITORY

TIMEOUT_S = 600
SERVER = Path(__file__).with_name("server.py")
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
    paths = [sysconfig.get_path("purelib"), *sites]
    wanted = json.dumps([sys.version, paths, installs, check])
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side: one installs, the others wait
        if not marker.exists() or marker.read_text() != wanted:
            _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
            pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
            for each in installs:
                _run(*pip, "install", "--quiet", "--no-compile", *each)
            site = _run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
            Path(site, "project.pth").write_text("\n".join(paths))
            _run(str(python), "-c", f"import {check}")
            marker.write_text(wanted)
    return python


def _run(*command: str) -> str:
    variables = os.environ | VARIABLES
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=variables
        )
    except subprocess.CalledProcessError as error:
        raise NotInstallableError(
            f"{' '.join(command[1:8])} failed: {error.stderr.strip()[-500:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"{' '.join(command[1:8])} took longer than {TIMEOUT_S} s") from error
    return done.stdout


def told(python: Path, modules: Sequence[str], folder: Path, *words: str) -> str:
    """The output of a program in this environment and folder: `-m MODULE`, or a script.

    A process that has imported the modules, and ends with this one, runs it in a fork.
    """
    server = _server(python, tuple(modules))
    with tempfile.NamedTemporaryFile("r") as output:
        server.stdin.write(json.dumps([str(folder), output.name, words]) + "\n")
        server.stdin.flush()
        code, text = server.stdout.readline(), output.read()
    assert code == "0\n", text[-4000:]
    return text


@cache
def _server(python: Path, modules: tuple[str, ...]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(python), str(SERVER), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | VARIABLES,
    )
