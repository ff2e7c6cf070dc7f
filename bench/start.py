"""`python -m bench start`: what commands take beside their work, by the defaults of this machine.

Rows are the fastest of three runs. `result` is the time until a command has told its result and begins
report.html; `beside stages` is what is left of that without the stages of run.json.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.report import Report
from bench.setting import ENVIRONMENT, GRAPHMILL, Setting, write_yaml
from bench.synthetic import Edges, tsv_edges

REPEATS = 3
SMALL = Edges(600, 450)
OF_PREDICT = Edges(15_000, 1_400)
ETL_ROWS = 5_000_000
REPORT = "report: drawing"


class Timed(NamedTuple):
    """Seconds of a command, from its start: to its end, its first line, its result; of all its processes."""

    wall_s: float
    first_line_s: float
    result_s: float
    cpu_s: float


def run(setting: Setting) -> Report:
    """Time the help, small runs and their answers, and a larger etl."""
    report = Report("start", "Start and end of commands, seconds")
    _add(report, "graphmill --help", _fastest("--help"))
    with setting.run_folder("start") as folder:
        small = _add_run(report, "pipeline", f"{SMALL.num_rows} edges", _config(setting, folder, SMALL))
        report.ratio("pipeline: first line, s", small.first_line_s, "<= 0.1")
        report.ratio("pipeline: result, s", small.result_s, "<= 3")
        report.ratio("pipeline: with its report, s", small.wall_s, "<= 4.5")
        _timed("pipeline", "--conf", _config(setting, folder, OF_PREDICT), "--quiet")
        relation, *_ = OF_PREDICT.relations[0]
        answers = folder / "answers"
        asked = ("predict", folder / OF_PREDICT.name, "--relation", relation, "--to", answers)
        predict = _fastest(*asked, replaced=answers)
        _add(report, f"predict, {OF_PREDICT.num_ids} ids", predict)
        report.ratio("predict: whole command, s", predict.wall_s, "<= 2.5")
        edges = Edges.of(setting.num_rows or ETL_ROWS)
        etl = _add_run(report, "etl", f"{edges.num_rows:,} rows", _config(setting, folder, edges))
        beside_s = etl.result_s - _stages_s(folder / edges.name)
        report.ratio("etl: result without its stage, s", beside_s, "<= 0.8")
    return report


def _config(setting: Setting, folder: Path, edges: Edges) -> Path:
    """Write a configuration that leaves out what it can."""
    table = {"path": str(tsv_edges(setting.graphs, edges)), "lhs": 0, "relation_column": 1, "rhs": 2}
    table |= {"format": "csv", "delimiter": "\t", "header": False}
    keys = ("name", "lhs", "rhs", "operator")
    relations = [dict(zip(keys, (*each, "none"), strict=True)) for each in edges.relations]
    types: dict[str, Any] = {each: {} for _, *pair in edges.relations for each in pair}
    etl = {"tables": [table], "holdout": {"test": 0.05}}
    content = {"output": str(folder / edges.name), "entities": types, "relations": relations, "etl": etl}
    return write_yaml(folder / f"{edges.name}.yaml", content)


def _add_run(report: Report, name: str, size: str, conf: Path) -> Timed:
    """Time a run of stages, each time from nothing."""
    output = conf.with_suffix("")
    timed = _fastest(name, "--conf", conf, replaced=output)
    _add(report, f"{name}, {size}", timed, _stages_s(output))
    return timed


def _stages_s(output: Path) -> float:
    stages = json.loads((output / "run.json").read_text())["stages"]
    return float(sum(each["seconds"] for each in stages.values()))


def _add(report: Report, what: str, timed: Timed, stages_s: float | None = None) -> None:
    beside = None if stages_s is None else timed.result_s - stages_s
    report.add(what, **timed._asdict(), stages_s=stages_s, beside_stages_s=beside)


def _fastest(*words: str | Path, replaced: Path | None = None) -> Timed:
    """Run a command some times; `replaced` is the folder that each time begins without."""
    found = []
    for _ in range(REPEATS):
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
        found.append(_timed(*words))
    return min(found)


def _timed(*words: Any) -> Timed:
    started_s = time.monotonic()
    command, environment = [*GRAPHMILL, *words], os.environ | ENVIRONMENT
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    lines = [(time.monotonic() - started_s, line) for line in process.stdout]
    _, status, usage = os.wait4(process.pid, 0)
    wall_s, process.returncode = time.monotonic() - started_s, os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException("".join(line for _, line in lines)[-3000:])
    result_s = next((at for at, line in lines if REPORT in line), wall_s)
    return Timed(wall_s, lines[0][0] if lines else wall_s, result_s, usage.ru_utime + usage.ru_stime)
