"""`python -m bench week`: seven days of a graph, trained from nothing, from the day before, and as deltas.

Each day 1 % of the edges are new and 0.5 % go, ids come and go, and a tenth of the ids drift (`made_week`).
The report has, after the last day, the MRR on test edges without and with new and drifted ids; the cosines of
the vectors of other ids to those of the first day; and for the last day the seconds of etl and training, the
processor time of the whole command, and the edges that were trained.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from bench.made_week import Week, make
from bench.measure import Measured
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Triples, triples_folder

NUM_DAYS = 7
SPLITS = ("test_old", "test_new", "test_drift_1")
MODELS: Mapping[str, Mapping[str, Any]] = {
    "drawn negatives": {"num_uniform_negs": 1000, "num_epochs": 8},
    "1-vs-all": {"num_epochs": 8},
}
WARM_EPOCHS = 3
DELTA: Mapping[str, Any] = {"train": {"replay": 3}, "num_epochs": 7}


def run(setting: Setting) -> Report:
    """Run the week with two kinds of models, three ways each."""
    source = setting.triples or triples_folder(setting.graphs, Triples())
    report = Report(
        "week", f"Seven days of {source.name}: trained from nothing, from the day before, as deltas"
    )
    with setting.run_folder("week") as folder:
        week = make(source, folder / "tables", NUM_DAYS)
        for name, model in MODELS.items():
            _measure(name, Days(setting, week, folder / name.replace(" ", "-"), model, SPLITS), report)
    report.notes.append(
        "Cosines to the first day are those of ids that were not drifted and did not go; one seed."
    )
    return report


def _measure(name: str, days: "Days", report: Report) -> None:
    """Run the three ways, and add their rows."""
    first, _ = days.run("first", 0)
    whole, cost = days.run("whole", NUM_DAYS)
    report.add(f"{name}: from nothing", **days.mrrs(whole), **_costs(whole, cost))
    for way, changes in {
        "all edges from the day before": {"num_epochs": WARM_EPOCHS},
        "deltas": DELTA,
    }.items():
        last = first
        for day in range(1, NUM_DAYS + 1):
            last, cost = days.run(way.split()[0], day, changes, last)
        cosines = days.cosines(first, last)
        report.add(
            f"{name}: {way}",
            **days.mrrs(last),
            cosine_p10=float(np.quantile(cosines, 0.1)),
            cosine_p50=float(np.median(cosines)),
            **_costs(last, cost),
        )


def _costs(output: Path, cost: Measured) -> dict[str, float]:
    training = stage_figures(output, "train")
    return {
        "etl_s": stage_figures(output, "etl")["seconds"],
        "train_s": training["seconds"],
        "command_cpu_s": cost.cpu_s,
        "trained_edges": training["num_edges"],
    }


class Days:
    """Runs of the days of a made-up week or month, with one kind of model."""

    def __init__(
        self, setting: Setting, week: Week, folder: Path, model: Mapping[str, Any], splits: Sequence[str]
    ) -> None:
        self.setting, self.week, self.folder = setting, week, folder
        self.model, self.splits = model, splits

    def run(
        self, name: str, day: int, changes: Mapping[str, Any] | None = None, before: Path | None = None
    ) -> tuple[Path, Measured]:
        """Run the pipeline on a day, from the output of the run before."""
        output = self.folder / f"{name}-{day}"
        etl: dict[str, Any] = {"tables": self._tables(day)}
        more: dict[str, Any] = {}
        if before is not None:
            etl["previous_entity_path"] = str(before / "entities")
            more["init_path"] = str(before / "checkpoint")
            if changes == DELTA:
                etl["previous_edge_path"] = str(before / "edges")
        config = {
            "input": str(self.week.folder),
            "output": str(output),
            "entities": {"entity": {"num_partitions": 1}},
            "relations": [{"name": "all", "lhs": "entity", "rhs": "entity", "operator": "complex_diagonal"}],
            "dynamic_relations": True,
            "etl": etl,
            "evaluate": {"split": "test_old", "budget": "unlimited"},
            **self.model,
            **more,
            **(changes or {}),
        }
        return output, self.setting.pipeline(write_yaml(self.folder / f"{name}-{day}.yaml", config), {})

    def _tables(self, day: int) -> list[dict[str, Any]]:
        files = {"train": self.week.paths(day), **{split: f"{split}.tsv" for split in self.splits}}
        if "test_new" in files and day < self.week.num_days:  # its ids come later
            files["test_new"] = "first.tsv"
        form = {"format": "csv", "delimiter": "\t", "header": False, "lhs": 0, "relation_column": 1, "rhs": 2}
        return [{"path": path, "split": split, **form} for split, path in files.items()]

    def mrrs(self, output: Path) -> dict[str, float]:
        """Evaluate a run on each split."""
        config_path = self.folder / f"{output.name}.yaml"
        return {split: float(self.setting.evaluate(config_path, split)[1]["mrr"]) for split in self.splits}

    def cosines(self, first: Path, last: Path) -> np.ndarray:
        """Compare the vectors of ids that nothing was planted for."""
        before, after = (_vectors(output) for output in (first, last))
        planted = self.week.drifted | self.week.gone
        same = [name for name in before if name in after and name not in planted]
        return np.array([before[name] @ after[name] for name in same])


def _vectors(output: Path) -> dict[str, np.ndarray]:
    """Vectors by raw id, of length 1."""
    table = ds.dataset(output / "embeddings" / "entity", format="parquet").to_table(["id", "embedding"])
    rows_ND = np.stack(table["embedding"].to_numpy())
    rows_ND /= np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return dict(zip(table["id"].to_pylist(), rows_ND, strict=True))
