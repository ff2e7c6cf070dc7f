"""PyTorch-BigGraph from PyPI, in a virtual environment of its own beside the repository's.

Its pkg_resources need setuptools<81, which the project's own environment need not have; torch, numpy and
h5py are taken from that environment, so that nothing big is installed twice.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import REPOSITORY

ENVIRONMENT = REPOSITORY / ".venv-pbg"
REQUIREMENTS = ("torchbiggraph==1.0.0", "setuptools<81", "attrs")
TIMEOUT_S = 600
# Keys that PBG learned after the release on PyPI, which refuses them.
NEWER_KEYS = {
    "half_precision",
    "num_gpus",
    "num_groups_for_partition_server",
    "num_groups_per_sharded_partition_server",
    "partition_shard_size",
    "regularization_coef",
    "regularizer",
}


class NotInstallableError(Exception):
    """PBG cannot be installed here."""


def install() -> Path:
    """The environment's python; made once, and again when this Python or the requirements change."""
    with ENVIRONMENT.with_name(f"{ENVIRONMENT.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side: one installs, the others wait
        return _install()


def _install() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    marker = ENVIRONMENT / "installed.json"
    wanted = {"python": sys.version, "site": sysconfig.get_path("purelib"), "requirements": REQUIREMENTS}
    if marker.exists() and json.loads(marker.read_text()) == json.loads(json.dumps(wanted)):
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pbg, *others = REQUIREMENTS
    _run([*pip, *others, "wheel"])
    _run([*pip, "--no-deps", "--no-build-isolation", pbg])
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(site, "project.pth").write_text(wanted["site"])
    _run([str(python), "-c", "import torchbiggraph.train, torch"])
    marker.write_text(json.dumps(wanted))
    return python


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2]
        raise NotInstallableError(f"{' '.join(command[1:5])} failed: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"{' '.join(command[1:5])} took longer than {TIMEOUT_S} s") from error
    return done.stdout


class Pbg:
    """PBG's commands, run on configurations that are written as PBG reads them; `code` stands before them."""

    def __init__(self, python: Path, folder: Path, code: str = "") -> None:
        self._python, self._folder, self._code = python, folder, code

    def train(self, settings: Mapping[str, Any]) -> None:
        """`torchbiggraph_train`."""
        self._call("torchbiggraph.train", settings)

    def evaluate(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """`torchbiggraph_eval`: its figures over all edges."""
        told = self._call("torchbiggraph.eval", settings)
        totals = re.findall(r"\] Stats: (.+)", told)
        assert len(totals) == 1, told
        pairs = (figure.split(":") for figure in totals[0].split(" , "))
        return {name.strip(): float(figure) for name, figure in pairs}

    def _call(self, module: str, settings: Mapping[str, Any]) -> str:
        return self.call(module, str(self.written(settings)))

    def written(self, settings: Mapping[str, Any]) -> Path:
        """A configuration file of PBG's with these settings."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "config.py"
        function = f"def get_torchbiggraph_config():\n    return {_released(settings)!r}\n"
        config.write_text(self._code + function)
        return config

    def call(self, module: str, *arguments: str) -> str:
        """The output of one of PBG's commands."""
        done = subprocess.run(
            [str(self._python), "-m", module, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout + done.stderr


def _released(settings: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in settings.items() if key not in NEWER_KEYS}
    for entity in known["entities"].values():
        entity.pop("dimension", None)
    return known
