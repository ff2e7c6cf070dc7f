"""FB15k-237 to a filtered test MRR, with the real commands and the configurations for a GPU."""

import json
from pathlib import Path
from typing import NamedTuple

from bench.gpu.device import Machine
from bench.pbg import REPOSITORY
from bench.report import Report
from bench.setting import Setting, stage_figures
from bench.synthetic import Triples, triples_folder
from graphmill.errors import ConfigError

TINY = Triples(200, 7, 1_000, 100, 100, num_clusters=10)
TRIAL = {"num_gpus": 0, "dimension": 16, "num_epochs": 2, "train.validate_every": 1}


class Goal(NamedTuple):
    """A configuration, the test MRR that it is for, and the seconds of training until then."""

    recipe: Path
    mrr: float
    seconds: int


FAST = Goal(REPOSITORY / "conf" / "fb15k237-gpu.yaml", 0.36, 60)
BEST = Goal(REPOSITORY / "conf" / "fb15k237-gpu-best.yaml", 0.385, 300)


def measure(goal: Goal, setting: Setting, machine: Machine, report: Report) -> None:
    """Measure seconds of the training stage (steps, checkpoints, validation), and the test MRR."""
    source = triples_folder(setting.graphs, TINY) if machine.is_trial else setting.triples
    if source is None:
        raise ConfigError("--triples FOLDER must name FB15k-237, with train.txt, valid.txt, test.txt")
    with setting.run_folder(goal.recipe.stem) as output:
        changes = {"input": str(source), "output": str(output), **(TRIAL if machine.is_trial else {})}
        settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        measured = setting.graphmill("pipeline", "--conf", goal.recipe, *settings)
        trained, evaluated = (stage_figures(output, stage) for stage in ("train", "evaluate"))
        validation = json.loads((output / "checkpoint" / "validation.json").read_text())["epochs"]
    metrics = evaluated["metrics"]
    report.add(
        "training",
        epochs=len(trained["epochs"]),
        seconds=trained["seconds"],
        step_s=trained["step_seconds"],
        M_edges_per_s=trained["edges_per_s"] / 1e6,
        mrr=metrics["mrr"],
        hits_at_1=metrics["hits@1"],
        hits_at_10=metrics["hits@10"],
    )
    report.add("etl, training and evaluation, from the command line", seconds=measured.wall_s)
    for entry in validation:
        report.add(f"validation after epoch {entry['epoch']}", mrr=entry["mrr"])
    report.ratio("test MRR", metrics["mrr"], f">= {goal.mrr}")
    report.ratio("seconds of training", trained["seconds"], f"<= {goal.seconds}")
