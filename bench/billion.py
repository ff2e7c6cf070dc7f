"""A billion edges on one machine: each stage by its command, within 8 GiB of memory and 70 GB of disk.

The graph is made up: 20 M ids of 16 bytes in two types, eight relations, 200 parquet files. The stages are
etl (P = 8), train (one epoch, D = 100), evaluate (about 10,000 held-out edges) and remap (to parquet). What
they write is compared with what the generator has counted. A smaller graph has as many edges per id.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Edges, Relations, parquet_edges, read_counts

ROWS = 1_000_000_000
ROWS_PER_ID = 50
NUM_FILES = 200
NUM_PARTITIONS = 8
NUM_HELD_OUT = 10_000
# Limits of the full size; a smaller graph gets its share of time and disk.
SECONDS, MEMORY_BYTES, DISK_BYTES = 2400, 8 << 30, 70 * 10**9
RELATIONS: Relations = (
    ("viewed", "user", "item"),
    ("clicked", "user", "item"),
    ("saved", "user", "item"),
    ("bought", "user", "item"),
    ("rated", "user", "item"),
    ("follows", "user", "user"),
    ("mentions", "user", "user"),
    ("similar_to", "item", "item"),
)


def run(setting: Setting) -> Report:
    """Run the stages one after the other, and check what they write."""
    num_rows = setting.num_rows or ROWS
    report = Report("billion", f"{num_rows:,} edges, {setting.num_workers} workers; each command as typed")
    num_ids = max(num_rows // ROWS_PER_ID, 2)
    edges = Edges(num_rows, num_ids, NUM_FILES, short_ids=True, compression="zstd", relations=RELATIONS)
    table = parquet_edges(setting.graphs, edges, setting.num_workers)
    with setting.run_folder("billion") as output:
        config_path = write_yaml(output / "config.yaml", _settings(table, num_rows, output))
        for stage in ("etl", "train", "evaluate", "remap"):
            measured = setting.graphmill(stage, "--conf", config_path, folders=[table, output])
            seconds = float(stage_figures(output, stage)["seconds"])
            report.add(
                stage,
                stage_s=seconds,
                M_edges_per_s=num_rows / seconds / 1e6,
                **measured.figures(),
                worker_peak_bytes=measured.worker_peak_bytes,
                disk_peak_bytes=measured.disk_peak_bytes,
            )
        _check(output, read_counts(setting.graphs, edges))
    _limits(report, num_rows / ROWS)
    return report


def _settings(table: Path, num_rows: int, output: Path) -> dict[str, Any]:
    source = {"path": str(table), "format": "parquet", "lhs": "lhs", "relation_column": "rel", "rhs": "rhs"}
    keys = ("name", "lhs", "rhs", "operator")
    return {
        "defaults": "pbg",
        "output": str(output),
        "etl": {"tables": [source], "holdout": {"test": min(NUM_HELD_OUT / num_rows, 0.01)}},
        "entities": {name: {"num_partitions": NUM_PARTITIONS} for name in ("user", "item")},
        "relations": [dict(zip(keys, (*names, "complex_diagonal"), strict=True)) for names in RELATIONS],
        "dimension": 100,
        "comparator": "dot",
        "loss_fn": "softmax",
        "global_emb": False,
        "num_batch_negs": 50,
        "num_uniform_negs": 50,
        "batch_size": 1000,
        "lr": 0.1,
        "num_epochs": 1,
        "eval_fraction": 0.0,
        "evaluate": {"budget": "unlimited"},
    }


def _check(output: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Compare edges by relation, ids by type, trained and ranked edges and vectors with their numbers."""
    etl, train, evaluate = (stage_figures(output, stage) for stage in ("etl", "train", "evaluate"))
    (epoch,) = train["epochs"]
    vectors = {
        name: sum(
            pq.read_metadata(path).num_rows for path in (output / "embeddings" / name).glob("*.parquet")
        )
        for name in counts["ids"]
    }
    for what, counted, expected in (
        ("edges", etl["num_edges_by_relation"], counts["rows"]),
        ("ids", {name: sum(parts) for name, parts in etl["num_entities"].items()}, counts["ids"]),
        ("trained edges", sum(bucket["edges"] for bucket in epoch["buckets"]), etl["num_edges"]["train"]),
        ("ranked edges", int(evaluate["metrics"]["num_edges"]), etl["num_edges"]["test"]),
        ("vectors", vectors, counts["ids"]),
    ):
        if counted != expected:
            raise click.ClickException(f"{what}: expected {expected}, counted {counted}")


def _limits(report: Report, share: float) -> None:
    """Compare the sum of the seconds, and the peaks, with the limits."""

    def all_of(name: str) -> list[float]:
        return [float(row[name] or 0) for row in report.rows]

    seconds, disk = sum(all_of("wall_s")), max(all_of("disk_peak_bytes"))
    report.ratio("seconds of all commands / 40 minutes per 1 G edges", seconds / (SECONDS * share), "<= 1")
    report.ratio("memory of all processes / 8 GiB", max(all_of("total_peak_bytes")) / MEMORY_BYTES, "<= 1")
    report.ratio("disk of input, work and output / 70 GB per 1 G edges", disk / (DISK_BYTES * share), "<= 1")
