"""Training: ours beside PBG's trainer, at equal dimension, negatives, loss and epochs.

Speed without quality means nothing: every row has the filtered MRR on the test edges, of PBG's checkpoints
too, all by our evaluator. PBG's edges/s are those of its own log, ours those of run.json. PBG's case
`with its delay` is the release with all of its defaults; the others are what it gets where one knows it.
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
    """What is trained; negatives are those of each side."""

    dimension: int
    num_batch_negs: int
    num_uniform_negs: int
    num_epochs: int
    wanted: Mapping[str, str]  # what our edges/s are over the peer's; HALF: over PBG tuned

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


PLAIN, TUNED, HALF = "PBG", "PBG, tuned malloc", "ours, half_precision"
DELAYED = "PBG, with its delay"
# By default all workers but one sleep for two seconds at first, which the clock of its log includes.
PEERS: Mapping[str, tuple[bool, dict[str, Any]]] = {
    DELAYED: (False, {}),
    PLAIN: (False, {"hogwild_delay": 0.0}),
    TUNED: (True, {"hogwild_delay": 0.0}),
}
CASES = (
    Case(100, 50, 50, num_epochs=5, wanted={DELAYED: "", PLAIN: ">= 8", TUNED: ">= 4"}),
    Case(400, 50, 1000, num_epochs=2, wanted={TUNED: ">= 2.8", HALF: ">= 5"}),
)


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
    found = {
        "ours": _ours(setting, report, case, shared, "ours"),
        HALF: _ours(setting, report, case, shared | {"half_precision": True}, HALF),
    }
    single = shared | {"workers": 1}
    _ours(setting, report, case, single, "ours, one thread")
    if not setting.peers:
        return
    pbg.python()  # made outside the clock
    for peer in (each for each in PEERS if each in case.wanted):
        theirs = _pbg(setting, report, case, shared, peer)
        for what, ours in found.items():
            wanted = case.wanted.get(HALF if what == HALF and peer == TUNED else peer, "")
            name = f"{case.name}: {what} / {peer}"
            report.ratio(f"{name}, edges/s", ours["edges_per_s"] / theirs["edges_per_s"], wanted)
            report.ratio(f"{name}, best epochs", ours["best_edges_per_s"] / theirs["best_edges_per_s"])
            report.ratio(f"{name}, MRR less theirs", ours["mrr"] - theirs["mrr"], ">= -.005")


def _ours(
    setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str
) -> Mapping[str, float]:
    with setting.run_folder("train-ours") as folder:
        config_path = write_yaml(folder / "config.yaml", triples.ours(shared, folder))
        measured = setting.submit("train.py", config_path)
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
    told = _PBG_LINE.findall(measured.stdout + measured.stderr)
    passes = [(int(edges), float(seconds)) for edges, seconds in told]
    return _add(report, case, what, measured, passes, metrics)


def _add(
    report: Report,
    case: Case,
    what: str,
    measured: measure.Measured,
    passes: Sequence[tuple[int, float]],
    metrics: Mapping[str, float],
) -> Mapping[str, float]:
    """A row of the table; `passes` are edges and seconds of each epoch: the graph has one bucket."""
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
        wall_s=measured.wall_s,
        cpu_s=measured.cpu_s,
        total_peak_bytes=measured.total_peak_bytes,
    )
    return {"edges_per_s": edges_per_s, "best_edges_per_s": best, "mrr": metrics["mrr"]}
