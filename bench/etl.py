"""ETL: our whole command against PBG's importer, the whole import in one DuckDB process, and the floor.

The floor is the work that no importer can avoid: read the table, dictionary-encode both endpoints.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from bench import floor, measure, pbg
from bench.pbg import REPOSITORY
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Edges, parquet_edges, tsv_edges

PBG_ROWS = 5_000_000
PBG_RELEASE_ROWS = 500_000  # the release takes seven minutes for all rows: only with --large
ROWS = 10_000_000
LARGE_ROWS = 50_000_000
NUM_PARTITIONS = 4


def run(setting: Setting) -> Report:
    """Compare with PBG on a TSV file, and with the floor and DuckDB on parquet files."""
    report = Report("etl", f"ETL, {setting.num_workers} workers; core = wall seconds x workers")
    _against_pbg(setting, report, Edges.of(setting.num_rows or PBG_ROWS))
    num_rows = setting.num_rows or ROWS
    small = _against_limits(setting, report, Edges.of(num_rows))
    if setting.large:
        large_rows = num_rows * LARGE_ROWS // ROWS
        large = _against_limits(setting, report, Edges.of(large_rows))
        what = f"ours, rows/s per core: {_millions(large_rows)} / {_millions(num_rows)} rows"
        report.ratio(what, large / small, ">= 0.85")
    return report


def _against_pbg(setting: Setting, report: Report, edges: Edges) -> None:
    tsv_path = tsv_edges(setting.graphs, edges)
    table = {"path": str(tsv_path), "format": "csv", "delimiter": "\t", "header": False, "quoting": False}
    table |= {"lhs": 0, "relation_column": 1, "rhs": 2}
    ours, _ = _ours(setting, report, edges, table, "TSV", num_partitions=1)
    if not setting.peers:
        return
    pbg.python()  # install outside the clock
    _pbg(setting, report, "PBG's importer, buffered", edges, tsv_path, ours)
    cut = edges if setting.large else Edges.of(min(edges.num_rows, PBG_RELEASE_ROWS))
    _pbg(setting, report, "PBG's importer", cut, tsv_edges(setting.graphs, cut), ours, edges.num_rows)


def _pbg(
    setting: Setting,
    report: Report,
    what: str,
    edges: Edges,
    tsv_path: Path,
    ours: measure.Measured,
    our_rows: int | None = None,
) -> None:
    with setting.run_folder("etl-pbg") as folder:
        config_path = pbg.write_config(folder / "config.py", _graph(edges, 1) | _pbg_paths(folder))
        theirs = pbg.import_tsv(config_path, tsv_path, buffered="buffered" in what)
    _add(report, what, "TSV", edges, 1, theirs, num_cores=1)
    ratio = (our_rows or edges.num_rows) / ours.wall_s / (edges.num_rows / theirs.wall_s)
    report.ratio(f"ours / {what}, rows/s", ratio, ">= 12")


def _against_limits(setting: Setting, report: Report, edges: Edges) -> float:
    """Compare with the floor and DuckDB; our rows/s per core."""
    folder = parquet_edges(setting.graphs, edges)
    table = {"path": str(folder), "format": "parquet", "lhs": "lhs", "relation_column": "rel", "rhs": "rhs"}
    ours, stage_s = _ours(setting, report, edges, table, "parquet", num_partitions=NUM_PARTITIONS)
    shares = floor.deal(sorted(folder.iterdir()), setting.num_workers)
    encoded = floor.run("encode", shares)
    _add(report, "floor: read + encode", "parquet", edges, None, encoded, setting.num_workers)
    size = _millions(edges.num_rows)
    report.ratio(f"floor / ours per core, {size} rows, whole command", ours.wall_s / encoded.wall_s, "<= 1.5")
    report.ratio(f"floor / ours per core, {size} rows, stage only", stage_s / encoded.wall_s, "<= 1.5")
    if setting.peers:
        _against_duckdb(setting, report, edges, folder, ours)
    return edges.num_rows / ours.wall_s / setting.num_workers


def _against_duckdb(
    setting: Setting, report: Report, edges: Edges, folder: Path, ours: measure.Measured
) -> None:
    if importlib.util.find_spec("duckdb") is None:
        report.notes.append("DuckDB is left out: pip install 'graphmill[bench]'")
        return
    relations = [":".join(relation) for relation in edges.relations]
    with setting.run_folder("etl-duckdb") as output:
        command = [sys.executable, "-m", "bench.duckdb_import", str(setting.num_workers), str(NUM_PARTITIONS)]
        theirs = measure.run([*command, folder, output / "imported", *relations], cwd=REPOSITORY)
    _add(report, "DuckDB, one process", "parquet", edges, NUM_PARTITIONS, theirs, setting.num_workers)
    size = _millions(edges.num_rows)
    report.ratio(f"ours / DuckDB per core, {size} rows", theirs.wall_s / ours.wall_s, ">= 1")
    report.ratio(f"ours / DuckDB per CPU second, {size} rows", theirs.cpu_s / ours.cpu_s)


def _ours(
    setting: Setting, report: Report, edges: Edges, table: dict[str, Any], form: str, *, num_partitions: int
) -> tuple[measure.Measured, float]:
    """Measure our whole command, and the seconds of its stage."""
    with setting.run_folder("etl-ours") as folder:
        config = _graph(edges, num_partitions) | {"output": str(folder), "etl": {"tables": [table]}}
        measured = setting.graphmill("etl", "--conf", write_yaml(folder / "config.yaml", config))
        figures = stage_figures(folder, "etl")
    _add(report, "ours", form, edges, num_partitions, measured, setting.num_workers, figures["seconds"])
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in figures["step_seconds"].items())
    report.notes.append(f"ours, {form}, {_millions(edges.num_rows)} rows, seconds: {steps}")
    return measured, figures["seconds"]


def _add(
    report: Report,
    what: str,
    form: str,
    edges: Edges,
    num_partitions: int | None,
    measured: measure.Measured,
    num_cores: int,
    stage_s: float | None = None,
) -> None:
    rows_per_s = edges.num_rows / measured.wall_s
    report.add(
        what,
        input=form,
        rows=_millions(edges.num_rows),
        partitions=num_partitions,
        stage_s=stage_s,
        M_rows_per_s=rows_per_s / 1e6,
        M_rows_per_s_core=rows_per_s / num_cores / 1e6,
        M_rows_per_cpu_s=edges.num_rows / measured.cpu_s / 1e6,
        worker_peak_bytes=measured.worker_peak_bytes or measured.main_peak_bytes,
        **measured.figures(),
    )


def _graph(edges: Edges, num_partitions: int) -> dict[str, Any]:
    """Entities and relations, in keys that our configuration and PBG's share."""
    relations = edges.relations
    return {
        "dimension": 8,
        "entities": {
            entity_type: {"num_partitions": num_partitions}
            for entity_type in dict.fromkeys(each for _, *types in relations for each in types)
        },
        "relations": [{"name": name, "lhs": lhs, "rhs": rhs} for name, lhs, rhs in relations],
    }


def _pbg_paths(folder: Path) -> dict[str, Any]:
    return {
        "entity_path": str(folder / "entities"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
    }


def _millions(num_rows: int) -> str:
    return f"{num_rows / 1e6:g} M"
