"""PyTorch-BigGraph, each release in a virtual environment of its own beside the repository's.

    1.0.0       from PyPI
    PBG_SOURCE  the checkout of PBG's repository that this variable of the environment names, if it is set

PBG's pkg_resources need setuptools<81, which the project's own environment need not have.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.interop import environments

SOURCE = "PBG_SOURCE"
RELEASES = ("1.0.0", SOURCE)
REQUIREMENTS = ("setuptools<81", "attrs", "tqdm", "wheel")
CONVERTERS = "torchbiggraph.converters"
MODULES = (
    *(f"{CONVERTERS}.{each}" for each in ("export_to_tsv", "import_from_tsv")),
    *("torchbiggraph.eval", "torchbiggraph.train"),
)


def install(release: str = RELEASES[0]) -> Path:
    """The python of an environment with the release."""
    if release != SOURCE:
        install_it = ("--no-deps", "--no-build-isolation", f"torchbiggraph=={release}")
        return environments.make(".venv-pbg", REQUIREMENTS, install_it, check="torchbiggraph.train")
    source = os.environ.get(SOURCE, "")
    if not source:
        raise environments.NotInstallableError(f"{SOURCE} names no checkout of its repository")
    return environments.make(".venv-pbg-source", REQUIREMENTS, sites=[source], check="torchbiggraph.train")


def examples(python: Path) -> Path:
    """The folder of the release's own example scripts."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages/torchbiggraph/examples")
    return folder


@cache
def _known_keys(python: Path) -> dict[str, list[str]]:
    """The keys of this release's configuration, and of its entities."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ask.py").write_text(
            "import attr, json, torchbiggraph.config as c\n"
            "print(json.dumps([[f.name for f in attr.fields(s)] for s in (c.ConfigSchema, c.EntitySchema)]))"
        )
        keys, of_entities = json.loads(told(python, Path(folder), "ask.py").splitlines()[-1])
    return {"config": keys, "entities": of_entities}


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
    return environments.told(python, MODULES, folder, *words)


def known_to(python: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that this release knows; it refuses others."""
    keys = _known_keys(python)
    known = {key: value for key, value in settings.items() if key in keys["config"]}
    known["entities"] = {
        name: {key: value for key, value in entity.items() if key in keys["entities"]}
        for name, entity in known["entities"].items()
    }
    return known
