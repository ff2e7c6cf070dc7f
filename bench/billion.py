"""A billion edges on one machine: each stage by its command, within 8 GiB of memory and 70 GB of disk.

The graph is made up: 20 M ids of 16 bytes in two types, eight relations, 200 parquet files. The stages are
etl (P = 8), train (one epoch, D = 100), evaluate (about 10,000 held-out edges) and remap (to parquet). The
floor of a stage is the work that no program can avoid, measured on a share of the data. A smaller graph has
as many edges per id.

    {work}/graphs/edges-.../     the graph; kept
    {work}/runs/billion/         output of all stages; kept only by calls that name a --stage
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from bench import billion_peers, measure
from bench.billion_stages import STAGES, Graph, Stage, edges_of, settings_of
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import parquet_edges, read_counts

ROWS = 1_000_000_000
# Limits of the full size; a smaller graph gets its share of time and disk.
SECONDS, MEMORY_BYTES, DISK_BYTES = 2400, 8 << 30, 70 * 10**9


def run(setting: Setting) -> Report:
    """Run the stages one after the other, and check what they write."""
    num_rows = setting.num_rows or ROWS
    name, how = ("billion-killed", ", killed once, and typed again") if setting.kill else ("billion", "")
    report = Report(name, f"{num_rows:,} edges, {setting.num_workers} workers; each command as typed{how}")
    edges = edges_of(num_rows)
    folder = parquet_edges(setting.graphs, edges, setting.num_workers)
    graph = Graph(edges, folder, read_counts(setting.graphs, edges))
    output = setting.work / "runs" / "billion"
    if not setting.stages:
        shutil.rmtree(output, ignore_errors=True)
    write_yaml(output / "config.yaml", settings_of(graph, output))
    for name in setting.stages or STAGES:
        _stage(report, STAGES[name](name, setting, graph, output), [folder, output])
    _limits(report, num_rows)
    if not setting.stages:
        shutil.rmtree(output)
    if setting.peers:
        billion_peers.add(setting, report, num_rows)
    return report


def _stage(report: Report, stage: Stage, folders: Sequence[Path]) -> None:
    """Run a stage, after a run that is killed if asked for, and add its row."""
    if stage.setting.kill:
        killed = stage.run(measure.Watch(folders, stage.has_begun))
        if not killed.is_killed:
            raise click.ClickException(f"{stage.name} ended before it could be killed; take more --rows")
        _add(report, f"{stage.name}, until it is killed", killed)
    measured = stage.run(measure.Watch(folders))
    figures = stage_figures(stage.output, stage.name)
    for what, found, expected in stage.checks(figures):
        if found != expected:
            raise click.ClickException(f"after {stage.name}: {what}: expected {expected:,}, found {found:,}")
    seconds, floor_s = float(figures["seconds"]), stage.floor_s()
    _add(
        report,
        stage.name,
        measured,
        stage_s=seconds,
        M_edges_per_s=stage.graph.num_rows / seconds / 1e6,
        floor_s=floor_s,
        share_of_floor=floor_s / seconds,
    )
    report.notes.append(f"{stage.name}: {stage.note(figures)}")


def _add(report: Report, what: str, measured: measure.Measured, **figures: float) -> None:
    report.add(
        what,
        wall_s=measured.wall_s,
        cpu_s=measured.cpu_s,
        **figures,
        worker_peak_bytes=measured.worker_peak_bytes,
        total_peak_bytes=measured.total_peak_bytes,
        disk_peak_bytes=measured.disk_peak_bytes,
    )


def _limits(report: Report, num_rows: int) -> None:
    """Compare the sum of the seconds, and the peaks, with the limits."""

    def all_of(name: str) -> list[float]:
        return [float(row[name] or 0) for row in report.rows]

    share = num_rows / ROWS
    seconds, disk = sum(all_of("wall_s")), max(all_of("disk_peak_bytes"))
    report.ratio("seconds of all commands / 40 minutes per 1 G edges", seconds / (SECONDS * share), "<= 1")
    report.ratio("memory of all processes / 8 GiB", max(all_of("total_peak_bytes")) / MEMORY_BYTES, "<= 1")
    report.ratio(
        "input, work and output on the disk / 70 GB per 1 G edges", disk / (DISK_BYTES * share), "<= 1"
    )
