"""PBG's importer and trainer on a hundredth of the benchmark of a billion edges, scaled to its size."""

from bench import measure, pbg
from bench.billion_stages import edges_of, shared_settings
from bench.report import Report
from bench.setting import Setting
from bench.synthetic import tsv_edges

SHARE = 100


def add(setting: Setting, report: Report, num_rows: int) -> None:
    """Add a row for PBG's importer, with a buffer, and one for its trainer, tuned; ratios to ours."""
    edges = edges_of(max(num_rows // SHARE, SHARE))
    pbg.python()  # install outside the clock
    ours = {row["what"]: float(row["stage_s"] or 0) for row in report.rows if row.get("stage_s")}
    tsv_path = tsv_edges(setting.graphs, edges)
    with setting.run_folder("billion-pbg") as folder:
        paths = {
            "entity_path": str(folder / "entities"),
            "edge_paths": [str(folder / "edges")],
            "checkpoint_path": str(folder / "checkpoint"),
        }
        settings = shared_settings() | paths | {"workers": setting.num_workers, "hogwild_delay": 0.0}
        config_path = pbg.write_config(folder / "config.py", settings)
        theirs = {
            "etl": ("PBG's importer, buffered", pbg.import_tsv(config_path, tsv_path, buffered=True)),
            "train": ("PBG's trainer, tuned malloc", pbg.train(config_path, tuned=True)),
        }
    for stage, (what, measured) in theirs.items():
        scaled_s = _add(report, what, measured, edges.num_rows, num_rows)
        if stage in ours:
            report.ratio(f"{what}, scaled / ours", scaled_s / ours[stage])


def _add(report: Report, what: str, measured: measure.Measured, num_rows: int, of_rows: int) -> float:
    """Add a row of a command that was run on `num_rows`; its seconds for `of_rows`."""
    scaled_s = measured.wall_s * of_rows / num_rows
    report.add(
        f"{what}, {num_rows:,} edges",
        wall_s=measured.wall_s,
        scaled_s=scaled_s,
        cpu_s=measured.cpu_s,
        M_edges_per_s=num_rows / measured.wall_s / 1e6,
        worker_peak_bytes=measured.worker_peak_bytes or measured.main_peak_bytes,
        total_peak_bytes=measured.total_peak_bytes,
    )
    return scaled_s
