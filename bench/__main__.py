"""`python -m bench`: runs the benchmarks and prints their tables."""

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from bench.pbg import REPOSITORY
from bench.report import Report, machine
from bench.setting import Setting
from graphmill.cluster import num_cores
from graphmill.errors import GraphMillError

BUSY_LOAD = 0.7
NAMES = ("etl", "train", "evaluate", "remap")
ON_REQUEST = ("start", "gpu", "billion", "topk")


@click.command("python -m bench")
@click.argument("names", nargs=-1, type=click.Choice(NAMES + ON_REQUEST))
@click.option(
    "--rows",
    "--edges",
    "rows",
    type=click.IntRange(1000),
    help="Edges of the tables of etl, start and billion, embeddings of remap, candidates of topk.",
)
@click.option(
    "--large",
    is_flag=True,
    help="etl: also a table with five times the rows (50 M). train: also a graph of 20 M edges.",
)
@click.option(
    "--triples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="train, evaluate: a folder with train.txt, valid.txt, test.txt (default: made up).",
)
@click.option("--peers/--no-peers", default=True, help="Also run the other programs (default: yes).")
@click.option(
    "--workers", "num_workers", type=click.IntRange(1), help="Worker processes (default: all cores)."
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep and reuse the synthetic graphs here (default: a temporary folder under build/).",
)
@click.option("--case", "cases", multiple=True, help="gpu: only this case (zipf-100-1000, twitter, ...).")
@click.option(
    "--add", is_flag=True, help="Keep the reports that the JSON file has; gpu: measure only the other cases."
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Store all figures."
)
def command(
    names: tuple[str, ...],
    rows: int | None,
    large: bool,
    triples: Path | None,
    peers: bool,
    num_workers: int | None,
    work: Path | None,
    cases: tuple[str, ...],
    add: bool,
    json_path: Path | None,
) -> None:
    """Measure each stage against the limits of the machine and against other programs, in one run.

    NAMES are etl, train, evaluate, remap (default: these four), start, gpu, billion, or topk.
    Keep the machine idle.
    """
    console = Console(width=None if Console().is_terminal else 170)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"started": started, "machine": machine()}
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        console.print(f"[yellow]The machine is busy (load {load:.1f}): the figures are unreliable.[/yellow]")
    scratch = REPOSITORY / "build"
    scratch.mkdir(exist_ok=True)
    reports = json.loads(json_path.read_text())["reports"] if add and json_path and json_path.exists() else {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as temporary:
        setting = Setting(
            work=(work or Path(temporary)).resolve(),
            num_workers=num_workers or num_cores(),
            num_rows=rows,
            large=large,
            peers=peers,
            triples=triples.resolve() if triples else None,
            cases=cases,
            kept=[name for name, report in reports.items() if "failed" not in report],
        )
        for report in _reports(names or NAMES, setting):
            report.show(console)
            reports[report.name] = {"started": started} | report.as_json()
            if json_path:
                json_path.parent.mkdir(parents=True, exist_ok=True)
                json_path.write_text(json.dumps(about | {"reports": reports}, indent=1) + "\n")


def _reports(names: Sequence[str], setting: Setting) -> Iterator[Report]:
    for name in names:
        try:
            reports = importlib.import_module(f"bench.{name}").run(setting)
            yield from [reports] if isinstance(reports, Report) else reports
        except GraphMillError as error:
            raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    # An exception lets every `with` block clean up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    command()
