"""FB15k-237 to a filtered test MRR, with the real commands, by a configuration for a GPU or by defaults."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.device import Machine
from bench.pbg import REPOSITORY
from bench.report import Report
from bench.setting import Setting, stage_figures
from bench.synthetic import Triples, triples_folder
from graphmill.errors import ConfigError

TINY = Triples(200, 7, 1_000, 100, 100, num_clusters=10)
TRIAL = {"num_gpus": 0, "dimension": 16, "num_epochs": 2, "train.validate_every": 1}
HALF: dict[str, Any] = {"num_gpus": 1, "entities.entity.num_partitions": 4}
HALF |= {"train.resident": "never", "train.memory_partitions": 2}


class Goal(NamedTuple):
    """A configuration, the test MRR that it is for, and the seconds of training until then, in all places."""

    recipe: Path
    mrr: float
    seconds: int
    places: Mapping[str, Mapping[str, Any]]


FAST = Goal(REPOSITORY / "conf" / "fb15k237-gpu.yaml", 0.36, 60, {"GPU": {}})
BEST = Goal(REPOSITORY / "conf" / "fb15k237-gpu-best.yaml", 0.385, 300, {"GPU": {}})
_TRIPLES = REPOSITORY / "conf" / "triples.yaml"
DEFAULTS = Goal(_TRIPLES, 0.345, 60, {"CPU": {"num_gpus": 0}, "GPU": {"num_gpus": 1}})
WORKERS = Goal(_TRIPLES, 0.32, 120, {"one worker": HALF, "two workers": HALF | {"train.num_workers": 2}})


def measure(goal: Goal, setting: Setting, machine: Machine, report: Report) -> None:
    """Measure seconds of the training stage (steps, checkpoints, validation), and the test MRR."""
    source = triples_folder(setting.graphs, TINY) if machine.is_trial else setting.triples
    if source is None:
        raise ConfigError("--triples FOLDER must name FB15k-237, with train.txt, valid.txt, test.txt")
    for place, own in goal.places.items():
        with setting.run_folder(goal.recipe.stem) as output:
            changes = {"input": source, "output": output, **own, **(TRIAL if machine.is_trial else {})}
            settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
            measured = setting.graphmill("pipeline", "--conf", goal.recipe, *settings)
            trained, metrics = stage_figures(output, "train"), stage_figures(output, "evaluate")["metrics"]
            kept = output / "checkpoint" / "validation.json"
            validation = json.loads(kept.read_text())["epochs"] if kept.exists() else []
        report.add(
            f"{place}: training",
            steps=", ".join(trained["plan"]["steps"].values()),
            epochs=len(trained["epochs"]),
            seconds=trained["seconds"],
            step_s=trained["step_seconds"],
            M_edges_per_s=trained["edges_per_s"] / 1e6,
            **{name: metrics[name] for name in ("mrr", "hits@1", "hits@10")},
            whole_command_s=measured.wall_s,
        )
        for entry in validation:
            report.add(f"{place}: validation after epoch {entry['epoch']}", mrr=entry["mrr"])
        report.ratio(f"{place}: test MRR", metrics["mrr"], f">= {goal.mrr}")
        report.ratio(f"{place}: seconds of training", trained["seconds"], f"<= {goal.seconds}")
