"""Remap: a checkpoint, and files of GraphStorm, to parquet, against the limits of the machine and GraphStorm.

The limits are a copy of as many bytes, and pyarrow that reads the finished tables and writes them again.
GraphStorm does not run here: its figures are constants, measured with its own command on two such cores,
start-up included, of which its imports take two seconds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import floor
from bench.report import Report
from bench.saved import Saved
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Edges
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.formats import entity_counts, entity_index, remapped
from graphmill.formats.entity_index import Manifest

ROWS = 2_000_000
DIMENSION = 128
TYPE = "user"
GRAPHSTORM_IMPORTS_S = 2.0
_APPEND_ROWS = 1 << 20


def run(setting: Setting) -> Report:
    """Remap one entity type, one partition per worker, and three jobs of GraphStorm."""
    num_rows = setting.num_rows or ROWS
    report = Report("remap", f"Remap, {num_rows:,} x {DIMENSION} float32, {setting.num_workers} workers")
    with setting.run_folder("remap") as folder:
        settings = _write_run(folder, num_rows, setting.num_workers)
        measured = setting.graphmill("remap", "--conf", write_yaml(folder / "config.yaml", settings))
        stage_s = float(stage_figures(folder, "remap")["seconds"])
        shares, num_bytes = _shares(folder, setting.num_workers)
        copied = floor.run("copy", shares)
    for what, in_stage_s, cost in (
        ("ours", stage_s, measured),
        ("floor: read and write the bytes", None, copied),
    ):
        seconds = in_stage_s or cost.wall_s
        report.add(
            what,
            stage_s=in_stage_s,
            k_rows_per_s=num_rows / seconds / 1e3,
            MB_written_per_s=num_bytes / seconds / 1e6,
            written_bytes=num_bytes,
            worker_peak_bytes=cost.worker_peak_bytes,
            **cost.figures(),
        )
    report.ratio("ours / read and write, the stage", stage_s / copied.wall_s)
    report.ratio("ours / read and write, whole command", measured.wall_s / copied.wall_s)
    for job in JOBS:
        saved_job(setting, report, job, num_rows)
    return report


@dataclass(frozen=True)
class _Job:
    """A job on files of GraphStorm, and the seconds of GraphStorm with ROWS; rows and ids in multiples."""

    what: str
    rows: int
    ids: int
    is_edges: bool
    graphstorm_s: float
    goal: str


JOBS = (
    _Job("embeddings", 1, 1, False, 7.0, ">= 2.5"),
    _Job("edge predictions", 4, 1, True, 6.8, ">= 3"),
    _Job("embeddings, large map", 1, 10, False, 19.0, ">= 3"),
)


def saved_job(setting: Setting, report: Report, job: _Job, num_rows: int) -> None:
    """Remap the files of one job; adds its rows to the report."""
    with setting.run_folder("saved") as folder:
        saved = Saved(folder / "saved", job.rows * num_rows, job.ids * num_rows, job.is_edges).write()
        flag = "--prediction-dir" if job.is_edges else "--node-emb-dir"
        inputs: list[str | Path] = ["--node-id-mapping", saved.maps, flag, saved.folder]
        options: list[str | Path] = ["--output-dir", folder / "out", "--preserve-input", "true"]
        measured = setting.graphmill("remap", *inputs, *options)
        tables = sorted((folder / "out").rglob("*.parquet"))
        num_bytes = sum(table.stat().st_size for table in tables)
        rewritten = floor.run("rewrite", floor.deal(tables, setting.num_workers))
        shares: list[list[str | Path]] = [
            [*share, folder / f"copied-{number}", str(num_bytes // setting.num_workers)]
            for number, share in enumerate(floor.deal(saved.sources, setting.num_workers))
        ]
        copied = floor.run("copy", shares)
    stage_s = float(json.loads(measured.stdout.splitlines()[-1])["seconds"])
    for what, seconds, cost in (
        (f"GraphStorm's {job.what}", stage_s, measured),
        ("  floor: pyarrow reads and writes the tables", None, rewritten),
        ("  floor: read and write the bytes", None, copied),
    ):
        report.add(
            what,
            stage_s=seconds,
            k_rows_per_s=job.rows * num_rows / (seconds or cost.wall_s) / 1e3,
            written_bytes=num_bytes,
            worker_peak_bytes=cost.worker_peak_bytes,
            **cost.figures(),
        )
    if num_rows == ROWS:
        theirs_s = job.graphstorm_s - GRAPHSTORM_IMPORTS_S
        report.ratio(f"{job.what}: GraphStorm / ours, without start-up", theirs_s / stage_s, job.goal)
        report.ratio(f"{job.what}: GraphStorm / ours, whole command", job.graphstorm_s / measured.wall_s)
    report.ratio(f"{job.what}: seconds to start and end", measured.wall_s - stage_s, "< 3")
    report.ratio(f"{job.what}: ours / pyarrow reads and writes", stage_s / rewritten.wall_s, "<= 1.5")
    report.ratio(f"{job.what}: ours / read and write the bytes", stage_s / copied.wall_s)


def _write_run(output: Path, num_rows: int, num_partitions: int) -> dict[str, Any]:
    """Write a finished run with random embeddings; its configuration."""
    settings = {
        "output": str(output),
        "entities": {TYPE: {"num_partitions": num_partitions}},
        "relations": [{"name": "follows", "lhs": TYPE, "rhs": TYPE}],
        "dimension": DIMENSION,
    }
    entity_path, checkpoint_path = str(output / "entities"), str(output / "checkpoint")
    ids = Edges.of(num_rows).ids(TYPE, np.arange(num_rows))
    iteration = Iteration(1, 0, 1, 0, "train", 1, 0)
    for partition in range(num_partitions):
        start, stop = (num_rows * each // num_partitions for each in (partition, partition + 1))
        entity_counts.write_count(entity_path, TYPE, partition, stop - start)
        with entity_index.new_part(entity_path, TYPE, partition) as writer:
            for first in range(start, stop, _APPEND_ROWS):
                part = ids[first : min(first + _APPEND_ROWS, stop)]
                writer.append(pa.concat_arrays([part]))
        rng = np.random.default_rng(partition)
        rows = rng.standard_normal((stop - start, DIMENSION), np.float32)
        pbg.write_embeddings(checkpoint_path, TYPE, partition, 1, rows, None, {}, iteration)
    entity_index.write_manifest(entity_path, Manifest("none", 0, {TYPE: num_partitions}))
    pbg.write_model(checkpoint_path, 1, {}, None, {}, iteration)
    pbg.commit(checkpoint_path, 1, preserve_epoch=None)
    return settings


def _shares(output: Path, num_partitions: int) -> tuple[list[list[str | Path]], int]:
    """List per partition the files that the floor reads, its target and size; and the sum of the sizes."""
    shares: list[list[str | Path]] = []
    num_bytes = 0
    for partition in range(num_partitions):
        written = Path(remapped.part_uri(str(output / "embeddings"), TYPE, partition)).stat().st_size
        sources = [
            pbg.embeddings_uri(str(output / "checkpoint"), TYPE, partition, 1),
            entity_index.part_uri(str(output / "entities"), TYPE, partition),
        ]
        shares.append([*sources, output / f"copied-{partition}", str(written)])
        num_bytes += written
    return shares, num_bytes
