"""Training: our trainer against PBG's, at equal dimension, negatives, loss and epochs.

Every row also has the filtered MRR on the test edges, by our evaluator, of PBG's checkpoints too. PBG's
edges/s come from its log, ours from run.json. `PBG, with its delay` is the release with all defaults; the
other cases have better settings.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import measure, pbg, triples
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml

_PBG_LINE = re.compile(r"Processed (\d+) edges in ([0-9.]+) s ")


@dataclass(frozen=True)
class Case:
    """A case to train; numbers of negatives are per side."""

    dimension: int
    num_batch_negs: int
    num_uniform_negs: int
    num_epochs: int
    goal: Mapping[str, str]  # of our edges/s over those of each peer; HALF: over PBG tuned

    @property
    def name(self) -> str:
        return f"D={self.dimension} {self.num_batch_negs}+{self.num_uniform_negs}"

    def settings(self, num_workers: int) -> dict[str, Any]:
        """The case in keys that our configuration and PBG's share."""
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


PLAIN, TUNED, HALF = "PBG", "PBG, tuned malloc", "ours, half_precision"
DELAYED = "PBG, with its delay"
# By default all workers but one first sleep for two seconds, which the time in its log includes.
PEERS: Mapping[str, tuple[bool, dict[str, Any]]] = {
    DELAYED: (False, {}),
    PLAIN: (False, {"hogwild_delay": 0.0}),
    TUNED: (True, {"hogwild_delay": 0.0}),
}
CASES = (
    Case(100, 50, 50, num_epochs=5, goal={DELAYED: "", PLAIN: ">= 8", TUNED: ">= 4"}),
    Case(400, 50, 1000, num_epochs=2, goal={TUNED: ">= 2.8", HALF: ">= 5"}),
)


def run(setting: Setting) -> Report:
    """Train all cases."""
    report = Report("train", f"Training, ComplEx, softmax, {setting.num_workers} cores")
    with setting.run_folder("train-graph") as folder:
        graph, figures = triples.prepare(setting, folder)
        report.notes.append(f"edges: {figures['num_edges']}, entities: {figures['num_entities']}")
        for case in CASES:
            _run_case(setting, report, case, graph | case.settings(setting.num_workers))
    return report


def _run_case(setting: Setting, report: Report, case: Case, shared: dict[str, Any]) -> None:
    found = {
        "ours": _ours(setting, report, case, shared, "ours"),
        HALF: _ours(setting, report, case, shared | {"half_precision": True}, HALF),
    }
    single = shared | {"workers": 1}
    _ours(setting, report, case, single, "ours, one thread")
    if not setting.peers:
        return
    pbg.python()  # install outside the clock
    for peer in (each for each in PEERS if each in case.goal):
        theirs = _pbg(setting, report, case, shared, peer)
        for what, ours in found.items():
            goal = case.goal.get(HALF if what == HALF and peer == TUNED else peer, "")
            name = f"{case.name}: {what} / {peer}"
            report.ratio(f"{name}, edges/s", ours["edges_per_s"] / theirs["edges_per_s"], goal)
            report.ratio(f"{name}, best epochs", ours["best_edges_per_s"] / theirs["best_edges_per_s"])
            report.ratio(f"{name}, MRR less theirs", ours["mrr"] - theirs["mrr"], ">= -.005")


def _ours(
    setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str
) -> Mapping[str, float]:
    with setting.run_folder("train-ours") as folder:
        config_path = write_yaml(folder / "config.yaml", triples.ours(shared, folder))
        measured = setting.graphmill("train", "--conf", config_path)
        epochs = stage_figures(folder, "train")["epochs"]
        passes = [(bucket["edges"], bucket["seconds"]) for epoch in epochs for bucket in epoch["buckets"]]
        _, metrics = setting.evaluate(config_path)
    return _add(report, case, what, measured, passes, metrics)


def _pbg(
    setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str
) -> Mapping[str, float]:
    tuned, own = PEERS[what]
    with setting.run_folder("train-pbg") as folder:
        shared = shared | {"checkpoint_path": str(folder / "checkpoint")}
        config_path = pbg.write_config(folder / "config.py", shared | own)
        measured = pbg.train(config_path, tuned=tuned)
        _, metrics = setting.evaluate(write_yaml(folder / "ours.yaml", triples.ours(shared, folder)))
    lines = _PBG_LINE.findall(measured.stdout + measured.stderr)
    passes = [(int(edges), float(seconds)) for edges, seconds in lines]
    return _add(report, case, what, measured, passes, metrics)


def _add(
    report: Report,
    case: Case,
    what: str,
    measured: measure.Measured,
    passes: Sequence[tuple[int, float]],
    metrics: Mapping[str, float],
) -> Mapping[str, float]:
    """Add a row; `passes` are edges and seconds of each epoch, because the graph has one bucket."""
    edges_per_s = sum(edges for edges, _ in passes) / sum(seconds for _, seconds in passes)
    best = max(edges / seconds for edges, seconds in passes)
    report.add(
        what,
        case=case.name,
        epochs=case.num_epochs,
        edges_per_s=edges_per_s,
        best_epoch=best,
        mrr=metrics["mrr"],
        hits_at_10=metrics["hits@10"],
        **measured.figures(),
    )
    return {"edges_per_s": edges_per_s, "best_edges_per_s": best, "mrr": metrics["mrr"]}
