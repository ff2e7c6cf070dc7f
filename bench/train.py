"""Training: ours beside PBG's trainer, at equal dimension, negatives, loss and epochs.

Speed without quality means nothing: every row has the filtered MRR on the test edges, of PBG's checkpoints
too, all by our evaluator. PBG's edges/s are those of its own log, ours those of run.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import measure, pbg, triples
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml

# As conf/triples.yaml has it: many edges share their negatives, which costs PBG quality and us nothing.
SHARED_BY = 500

_PBG_LINE = re.compile(r"Processed (\d+) edges in ([0-9.]+) s ")


@dataclass(frozen=True)
class Case:
    """What is trained; negatives are those of each side."""

    dimension: int
    num_batch_negs: int
    num_uniform_negs: int
    num_epochs: int

    @property
    def name(self) -> str:
        return f"D={self.dimension} {self.num_batch_negs}+{self.num_uniform_negs}"

    def settings(self, num_workers: int) -> dict[str, Any]:
        """In the keys that ours and PBG's configuration share."""
        return {
            "dimension": self.dimension,
            "num_batch_negs": self.num_batch_negs,
            "num_uniform_negs": self.num_uniform_negs,
            "num_epochs": self.num_epochs,
            "batch_size": 1000,
            "lr": 0.1,
            "eval_fraction": 0.0,
            "workers": num_workers,
        }


CASES = (Case(100, 50, 50, num_epochs=5), Case(400, 50, 1000, num_epochs=2))


def run(setting: Setting) -> Report:
    """Both cases."""
    report = Report("train", f"Training, ComplEx, softmax, {setting.num_workers} cores")
    with setting.run_folder("train-graph") as folder:
        graph, figures = triples.prepare(setting, folder)
        report.notes.append(f"edges: {figures['num_edges']}, entities: {figures['num_entities']}")
        for case in CASES:
            _run_case(setting, report, case, graph | case.settings(setting.num_workers))
    return report


def _run_case(setting: Setting, report: Report, case: Case, shared: dict[str, Any]) -> None:
    ours = _ours(setting, report, case, shared, "ours")
    if setting.peers:
        pbg.python()  # made outside the clock
        for what, tuned in (("PBG", False), ("PBG, tuned malloc", True)):
            theirs = _pbg(setting, report, case, shared, what, tuned=tuned)
            report.ratio(f"{case.name}: ours / {what}, edges/s", ours["edges_per_s"] / theirs["edges_per_s"])
            report.ratio(f"{case.name}: ours / {what}, MRR", ours["mrr"] / theirs["mrr"], ">= 1")
    what = f"ours, negatives shared by {SHARED_BY}"
    _ours(setting, report, case, shared | {"num_batch_negs": SHARED_BY}, what)


def _ours(
    setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str
) -> Mapping[str, float]:
    with setting.run_folder("train-ours") as folder:
        config_path = write_yaml(folder / "config.yaml", triples.ours(shared, folder))
        measured = setting.submit("train.py", config_path)
        edges_per_s = float(stage_figures(folder, "train")["edges_per_s"])
        _, metrics = setting.evaluate(config_path)
    return _add(report, case, what, measured, edges_per_s, metrics)


def _pbg(
    setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str, *, tuned: bool
) -> Mapping[str, float]:
    with setting.run_folder("train-pbg") as folder:
        shared = shared | {"checkpoint_path": str(folder / "checkpoint")}
        # By default all workers but one sleep for two seconds at first, which the clock of its log includes.
        config_path = pbg.write_config(folder / "config.py", shared | {"hogwild_delay": 0.0})
        measured = pbg.train(config_path, tuned=tuned)
        _, metrics = setting.evaluate(write_yaml(folder / "ours.yaml", triples.ours(shared, folder)))
    passes = _PBG_LINE.findall(measured.stdout + measured.stderr)
    edges_per_s = sum(int(edges) for edges, _ in passes) / sum(float(seconds) for _, seconds in passes)
    return _add(report, case, what, measured, edges_per_s, metrics)


def _add(
    report: Report,
    case: Case,
    what: str,
    measured: measure.Measured,
    edges_per_s: float,
    metrics: Mapping[str, float],
) -> Mapping[str, float]:
    report.add(
        what,
        case=case.name,
        epochs=case.num_epochs,
        edges_per_s=edges_per_s,
        mrr=metrics["mrr"],
        hits_at_10=metrics["hits@10"],
        wall_s=measured.wall_s,
        cpu_s=measured.cpu_s,
        total_peak_bytes=measured.total_peak_bytes,
    )
    return {"edges_per_s": edges_per_s, "mrr": metrics["mrr"]}
