"""`python -m bench exchange`: partitions of several workers, from each other's memory or through files.

A graph with large partitions and few edges per bucket, on 2 and on 4 worker processes. `files` is a run that
keeps nothing in the workers' memory for others (`train.exchange_bytes: 0`) and reads nothing ahead; `memory`
is the default.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from graphmill.config import from_mapping
from graphmill.config.partitions import all_buckets
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges

NUM_PARTITIONS = 16
ROWS = 20_000  # of a partition
DIMENSION = 400
EDGES = 5_000  # of a bucket
EPOCHS = 2
MODES: dict[str, dict[str, Any]] = {
    "files": {"exchange_bytes": 0, "prefetch": False},
    "memory": {},
}


def run(setting: Setting) -> Report:
    """Train on 2 and 4 workers, with and without the exchange between workers."""
    rows = max(1000, (setting.num_rows or ROWS * NUM_PARTITIONS) // NUM_PARTITIONS)
    title = f"{NUM_PARTITIONS} partitions of {rows:,} x {DIMENSION}, {EDGES:,} edges per bucket"
    report = Report("exchange", f"Partitions of several workers: {title}")
    with setting.run_folder("exchange") as folder:
        settings = _settings(str(folder))
        _write_graph(settings, rows)
        for num_workers in (2, 4):
            for mode, keys in MODES.items():
                _train(setting, report, settings, mode, num_workers, keys)
    report.notes.append("Waiting needs a quiet machine with a core per worker; bytes do not.")
    return report


def _train(
    setting: Setting,
    report: Report,
    settings: dict[str, Any],
    mode: str,
    num_workers: int,
    keys: dict[str, Any],
) -> None:
    name = f"{num_workers}-{mode}"
    output = f"{settings['output']}/{name}"
    train = {"num_workers": num_workers, **keys}
    chosen = settings | {"output": output, "train": train}
    config_path = write_yaml(setting.work / "runs" / f"{name}.yaml", chosen)
    measured = replace(setting, num_workers=num_workers).submit("train.py", config_path)
    last = stage_figures(Path(output), "train")["epochs"][-1]
    spent_s = sum(each["seconds"] + each["wait_s"] for each in last["buckets"])
    report.add(
        f"{mode}, {num_workers} workers",
        wall_s=measured.wall_s,
        epoch_s=last["seconds"],
        waiting_percent=100 * sum(each["wait_s"] for each in last["buckets"]) / spent_s,
        **{key: last[key] for key in ("fetched_bytes", "read_bytes", "written_bytes")},
        worker_peak_bytes=measured.worker_peak_bytes,
    )
    shutil.rmtree(output)


def _settings(folder: str) -> dict[str, Any]:
    return {
        "output": folder,
        "entity_path": f"{folder}/entities",
        "edge_paths": [f"{folder}/edges/train"],
        "entities": {"node": {"num_partitions": NUM_PARTITIONS}},
        "relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "none"}],
        "dimension": DIMENSION,
        "num_epochs": EPOCHS,
        "workers": 1,
        "eval_fraction": 0.0,
    }


def _write_graph(settings: dict[str, Any], rows: int) -> None:
    config = from_mapping(settings)
    generator = np.random.default_rng(1)
    for part in range(NUM_PARTITIONS):
        entity_counts.write_count(config.entity_path, "node", part, rows)
    for bucket in all_buckets(config):
        lhs, rhs = generator.integers(rows, size=(2, EDGES))
        edges = Edges(lhs, np.zeros(EDGES, np.int64), rhs, None)
        edge_buckets.write_bucket(config.edge_paths[0], bucket, edges)
