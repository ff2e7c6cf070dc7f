"""Settings of all benchmarks: folders, number of workers, and calls of GraphMill's commands."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench import measure
from bench.pbg import REPOSITORY


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
    pbg_python: Path | None = None  # a Python that has PBG with its GPU mode
    stages: tuple[str, ...] = ()  # of billion
    kill: bool = False  # each stage of billion once
    kept: Mapping[str, Any] = field(default_factory=dict)  # reports that the JSON file has already
    dry: bool = False  # gpu: compile and count only
    again: bool = False  # gpu: measure these too

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

    def pipeline(self, config_path: Path, changes: Mapping[str, Any]) -> measure.Measured:
        """Run `dask-submit --master local[N] pipeline.py --conf ... --set ...` with this Python."""
        options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "graphmill.cli.submit", *self._master(), "pipeline.py"]
        return self._run([*command, "--conf", config_path, *options])

    def submit(
        self, script: str, config_path: Path, watch: measure.Watch = measure.NOTHING
    ) -> measure.Measured:
        """Run `dask-submit --master local[N] SCRIPT --conf ...`."""
        dask_submit = Path(sys.executable).with_name("dask-submit")
        return self._run([dask_submit, *self._master(), script, "--conf", config_path], watch)

    def evaluate(self, config_path: Path, split: str = "test") -> tuple[measure.Measured, dict[str, float]]:
        """Run `python -m train evaluate --json --split SPLIT`; its metrics."""
        measured = self.submit_evaluate(config_path, split=split)
        return measured, json.loads(measured.stdout.splitlines()[-1])

    def submit_evaluate(
        self, config_path: Path, watch: measure.Watch = measure.NOTHING, split: str = "test"
    ) -> measure.Measured:
        """Run `python -m train evaluate --json --split SPLIT`."""
        command = [sys.executable, "-m", "train", "evaluate", *self._master(), "--json", "--split", split]
        return self._run([*command, "--conf", config_path], watch)

    def remap(self, *arguments: str | Path) -> tuple[measure.Measured, dict[str, Any]]:
        """Run `python -m remap` with GraphStorm's flags; its figures."""
        measured = self._run([sys.executable, "-m", "remap", *self._master(), *arguments])
        return measured, json.loads(measured.stdout.splitlines()[-1])

    def _run(self, command: Sequence[str | Path], watch: measure.Watch = measure.NOTHING) -> measure.Measured:
        # Use the packages of this repository, installed or not.
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return measure.run(command, cwd=REPOSITORY, environment={"PYTHONPATH": path}, watch=watch)

    def _master(self) -> list[str]:
        return ["--master", f"local[{self.num_workers}]"]


def write_yaml(path: Path, settings: Mapping[str, Any]) -> Path:
    """Write a configuration file of GraphMill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    return path


def stage_figures(output: Path, stage: str) -> dict[str, Any]:
    """The figures of a stage in run.json."""
    figures: dict[str, Any] = json.loads((output / "run.json").read_text())["stages"][stage]
    return figures
