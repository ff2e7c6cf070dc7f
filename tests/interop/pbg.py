"""PyTorch-BigGraph, each release in a virtual environment of its own beside the repository's.

    1.0.0       from PyPI
    PBG_SOURCE  the checkout of PBG's repository that this variable of the environment names, if it is set

PBG's pkg_resources need setuptools<81, which the project's own environment need not have; torch, numpy and
h5py are taken from that environment, so that nothing big is installed twice.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests import REPOSITORY

ENVIRONMENT = REPOSITORY / ".venv-pbg"
SOURCE = "PBG_SOURCE"
RELEASES = ("1.0.0", SOURCE)
REQUIREMENTS = ("setuptools<81", "attrs", "tqdm")
TIMEOUT_S = 600
SERVER = Path(__file__).with_name("pbg_server.py")


class NotInstallableError(Exception):
    """PBG cannot be installed here."""


def install(release: str = RELEASES[0]) -> Path:
    """The environment's python; made once, and again when this Python or the requirements change."""
    environment = ENVIRONMENT.with_name(ENVIRONMENT.name + ("-source" if release == SOURCE else ""))
    with environment.with_name(f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side: one installs, the others wait
        return _install(environment, release)


def _install(environment: Path, release: str) -> Path:
    python = environment / "bin" / "python"
    marker = environment / "installed.json"
    source = os.environ.get(SOURCE, "") if release == SOURCE else f"torchbiggraph=={release}"
    if not source:
        raise NotInstallableError(f"the environment variable {SOURCE} names no checkout of its repository")
    sites = [sysconfig.get_path("purelib"), *([source] if release == SOURCE else [])]
    wanted = {"python": sys.version, "sites": sites, "requirements": [source, *REQUIREMENTS]}
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(environment)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *REQUIREMENTS, "wheel"])
    if release != SOURCE:
        _run([*pip, "--no-deps", "--no-build-isolation", source])
    site = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(site, "project.pth").write_text("\n".join(sites))
    _run([str(python), "-c", "import torchbiggraph.train, torch"])
    marker.write_text(json.dumps(wanted))
    return python


def examples(python: Path) -> Path:
    """The folder of the release's own example scripts."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages/torchbiggraph/examples")
    return folder


@cache
def _known_keys(python: Path) -> dict[str, list[str]]:
    """The keys of this release's configuration, and of its entities."""
    ask = (
        "import attr, json, torchbiggraph.config as c; "
        "print(json.dumps([[f.name for f in attr.fields(s)] for s in (c.ConfigSchema, c.EntitySchema)]))"
    )
    keys, of_entities = json.loads(_run([str(python), "-c", ask]).splitlines()[-1])
    return {"config": keys, "entities": of_entities}


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
        output = self._call("torchbiggraph.eval", settings)
        totals = re.findall(r"\] Stats: (.+)", output)
        assert len(totals) == 1, output
        pairs = (figure.split(":") for figure in totals[0].split(" , "))
        return {name.strip(): float(figure) for name, figure in pairs}

    def _call(self, module: str, settings: Mapping[str, Any]) -> str:
        return self.call(module, str(self.written(settings)))

    def written(self, settings: Mapping[str, Any]) -> Path:
        """A configuration file of PBG's with these settings."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "config.py"
        function = f"def get_torchbiggraph_config():\n    return {known_to(self._python, settings)!r}\n"
        config.write_text(self._code + function)
        return config

    def call(self, module: str, *arguments: str) -> str:
        """The output of one of PBG's commands."""
        return told(self._python, Path.cwd(), "-m", module, *arguments)


def told(python: Path, folder: Path, *words: str) -> str:
    """The output of a program in PBG's environment and in this folder: `-m MODULE`, or a script."""
    server = _server(python)
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output:
        server.stdin.write(json.dumps([str(folder), output.name, words]) + "\n")
        server.stdin.flush()
        code, text = server.stdout.readline(), output.read()
    assert code == "0\n", text[-4000:]
    return text


@cache
def _server(python: Path) -> "subprocess.Popen[str]":
    """The process that has imported PBG; it ends with this one."""
    return subprocess.Popen(
        [str(python), str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": str(REPOSITORY),
        },
    )


def known_to(python: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that this release knows; it refuses others."""
    keys = _known_keys(python)
    known = {key: value for key, value in settings.items() if key in keys["config"]}
    known["entities"] = {
        name: {key: value for key, value in entity.items() if key in keys["entities"]}
        for name, entity in known["entities"].items()
    }
    return known
