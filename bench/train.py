"""Training: our trainer against PBG's, at equal dimension, negatives, loss, epochs, and to an equal quality.

PBG's edges/s come from its log, ours from run.json. To a quality: PBG with the best of some rates until its
best epoch by the MRR of the validation edges, and our defaults until an epoch is as good. Our evaluator ranks
both. `--large`: also to a quality on a graph of a million entities.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench import measure, pbg, triples
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Triples, triples_folder

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
CASES = (
    Case(100, 50, 50, num_epochs=5, goal={PLAIN: ">= 8", TUNED: ">= 4"}),
    Case(400, 50, 1000, num_epochs=2, goal={TUNED: ">= 2.8", HALF: ">= 5"}),
)
RATES = (0.05, 0.1, 0.2)
QUALITY = Case(200, 50, 1000, num_epochs=10, goal={})
LARGE_QUALITY = Case(100, 50, 50, num_epochs=4, goal={})
LARGE = Triples(1_000_000, 5, num_train=20_000_000, num_valid=2000, num_test=2000, num_clusters=5000)


def run(setting: Setting) -> Report:
    """Train all cases."""
    report = Report("train", f"Training, ComplEx, softmax, {setting.num_workers} cores")
    with setting.run_folder("train-graph") as folder:
        graph, figures = triples.prepare(setting, folder)
        report.notes.append(f"edges: {figures['num_edges']}, entities: {figures['num_entities']}")
        for case in CASES:
            _run_case(setting, report, case, graph | case.settings(setting.num_workers))
        if setting.peers:
            _to_quality(setting, report, "quality", graph, QUALITY, rate_epochs=QUALITY.num_epochs)
    if setting.peers and setting.large:
        with setting.run_folder("train-large") as folder:
            source = replace(setting, triples=triples_folder(setting.graphs, LARGE))
            graph, _ = triples.prepare(source, folder)
            _to_quality(setting, report, "quality, 20 M edges", graph, LARGE_QUALITY, rate_epochs=1)
    return report


def _run_case(setting: Setting, report: Report, case: Case, shared: dict[str, Any]) -> None:
    found = {
        "ours": _ours(setting, report, case, shared, "ours"),
        HALF: _ours(setting, report, case, shared | {"half_precision": True}, HALF),
    }
    _ours(setting, report, case, shared | {"workers": 1}, "ours, one thread")
    if not setting.peers:
        return
    pbg.python()  # install outside the clock
    for peer in (each for each in (PLAIN, TUNED) if each in case.goal):
        theirs = _pbg(setting, report, case, shared, peer)
        for what, ours in found.items():
            goal = case.goal.get(HALF if what == HALF and peer == TUNED else peer, "")
            report.ratio(f"{case.name}: {what} / {peer}, edges/s", ours / theirs, goal)


def _ours(setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str) -> float:
    with setting.run_folder("train-ours") as folder:
        measured, passes = _train(setting, write_yaml(folder / "config.yaml", triples.ours(shared, folder)))
    return _add(report, case, what, measured, passes)


def _pbg(setting: Setting, report: Report, case: Case, shared: dict[str, Any], what: str) -> float:
    with setting.run_folder("train-pbg") as folder:
        measured, passes = _train_pbg(folder, shared, tuned=what == TUNED)
    return _add(report, case, what, measured, passes)


def _train(setting: Setting, config_path: Path) -> tuple[measure.Measured, list[tuple[int, float]]]:
    """Train; also edges and seconds of each epoch, because the graph has one bucket."""
    measured = setting.graphmill("train", "--conf", config_path)
    epochs = stage_figures(config_path.parent, "train")["epochs"]
    return measured, [(part["edges"], part["seconds"]) for epoch in epochs for part in epoch["buckets"]]


def _train_pbg(
    folder: Path, shared: dict[str, Any], *, tuned: bool
) -> tuple[measure.Measured, list[tuple[int, float]]]:
    """Train with PBG, whose workers do not sleep first, as all but one do by default."""
    own = {"checkpoint_path": str(folder / "checkpoint"), "hogwild_delay": 0.0}
    measured = pbg.train(pbg.write_config(folder / "config.py", shared | own), tuned=tuned)
    lines = _PBG_LINE.findall(measured.stdout + measured.stderr)
    return measured, [(int(edges), float(seconds)) for edges, seconds in lines]


def _add(
    report: Report, case: Case, what: str, measured: measure.Measured, passes: Sequence[tuple[int, float]]
) -> float:
    """Add a row; the edges per second of all epochs."""
    edges_per_s = sum(edges for edges, _ in passes) / sum(seconds for _, seconds in passes)
    best = max(edges / seconds for edges, seconds in passes)
    report.add(
        what,
        case=case.name,
        epochs=case.num_epochs,
        edges_per_s=edges_per_s,
        best_epoch=best,
        **measured.figures(),
    )
    return edges_per_s


def _to_quality(
    setting: Setting, report: Report, name: str, graph: dict[str, Any], case: Case, *, rate_epochs: int
) -> None:
    """Add the seconds of training until PBG's best quality; `rate_epochs` decide which rate is its best."""
    kept = {"checkpoint_preservation_interval": 1}
    shared = graph | case.settings(setting.num_workers) | kept

    def best_of_pbg(lr: float, num_epochs: int) -> tuple[float, float, float]:
        with setting.run_folder("quality-pbg") as folder:
            _, passes = _train_pbg(folder, shared | {"lr": lr, "num_epochs": num_epochs}, tuned=True)
            ranked = _ranked(setting, folder, triples.ours(shared, folder), passes)
            return max((mrr, -seconds, lr) for mrr, seconds in ranked)

    wanted, theirs_s, lr = max(best_of_pbg(lr, rate_epochs) for lr in RATES)
    if rate_epochs < case.num_epochs:
        wanted, theirs_s, lr = best_of_pbg(lr, case.num_epochs)
    report.add(f"{TUNED}, lr {lr}: until its best epoch", case=name, train_s=-theirs_s, valid_mrr=wanted)
    left_out = ("comparator", "loss_fn")  # the defaults are these, with other values of the rest
    own = {key: value for key, value in graph.items() if key not in left_out} | kept
    with setting.run_folder("quality-ours") as folder:
        settings = triples.ours(own | {"dimension": case.dimension}, folder) | {"defaults": "graphmill"}
        _, passes = _train(setting, write_yaml(folder / "config.yaml", settings))
        *_, (mrr, seconds) = _ranked(setting, folder, settings, passes, wanted)
    report.add("ours, defaults: until as good", case=name, train_s=seconds, valid_mrr=mrr)
    ratio = -theirs_s / seconds if mrr >= wanted else 0.0
    report.ratio(f"{name}: seconds to PBG's best, PBG / ours", ratio, ">= 15")


def _ranked(
    setting: Setting,
    folder: Path,
    settings: dict[str, Any],
    passes: Sequence[tuple[int, float]],
    enough: float = 1.0,
) -> Iterator[tuple[float, float]]:
    """Yield the MRR of the validation edges, and the seconds so far, after each epoch until one is enough."""
    for number, seconds in enumerate(accumulate(seconds for _, seconds in passes), 1):
        preserved = folder / "checkpoint" / f"epoch_{number}"
        path = str(preserved if preserved.exists() else preserved.parent)  # the last one is the checkpoint
        own = {"checkpoint_path": path, "evaluate": {"split": "valid", "budget": "unlimited"}}
        _, metrics = setting.evaluate(write_yaml(folder / "evaluated.yaml", settings | own))
        yield metrics["mrr"], seconds
        if metrics["mrr"] >= enough:
            return
