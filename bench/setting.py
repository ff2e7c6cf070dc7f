"""Settings of all benchmarks: folders, number of workers, and calls of GraphMill's commands."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import measure
from bench.pbg import REPOSITORY

GRAPHMILL = (sys.executable, "-m", "graphmill")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))}


@dataclass(frozen=True)
class Setting:
    """Settings of the benchmarks."""

    work: Path  # synthetic graphs in graphs/, everything else in runs/
    num_workers: int
    num_rows: int | None = None
    large: bool = False
    peers: bool = True
    triples: Path | None = None
    cases: tuple[str, ...] = ()  # of gpu
    kept: Sequence[str] = ()  # reports that the JSON file has already

    @property
    def graphs(self) -> Path:
        return self.work / "graphs"

    @contextmanager
    def run_folder(self, name: str) -> Iterator[Path]:
        """Give an empty folder for one run, removed afterwards."""
        folder = self.work / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def graphmill(self, *words: str | Path, folders: Sequence[Path] = ()) -> measure.Measured:
        """Run a command of this repository with the workers; `folders`: see `measure.run`."""
        command = [*GRAPHMILL, *words, "--master", f"local[{self.num_workers}]"]
        return measure.run(command, cwd=REPOSITORY, environment=ENVIRONMENT, folders=folders)

    def evaluate(self, config_path: Path) -> tuple[measure.Measured, dict[str, float]]:
        """Rank the test edges; also their metrics."""
        measured = self.graphmill("evaluate", "--json", "--conf", config_path)
        return measured, json.loads(measured.stdout.splitlines()[-1])


def write_yaml(path: Path, settings: Mapping[str, Any]) -> Path:
    """Write a configuration file of GraphMill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    return path


def stage_figures(output: Path, stage: str) -> dict[str, Any]:
    """The figures of a stage in run.json."""
    figures: dict[str, Any] = json.loads((output / "run.json").read_text())["stages"][stage]
    return figures
