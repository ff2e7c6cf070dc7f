"""`graphmill train`, `graphmill evaluate`: embeddings are trained, and ranked."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from graphmill import config
from graphmill.cli import exit_codes
from graphmill.cli.options import (
    OF_A_RUN,
    StageGroup,
    as_overrides,
    dry_run_option,
    run_argument,
    run_options,
)
from graphmill.cli.section_options import section_options
from graphmill.config.sections.evaluate import EvaluateConfig


@click.group("train", cls=StageGroup, context_settings=exit_codes.CONTEXT)
def command() -> None:
    """Train embeddings (the default), or evaluate a checkpoint."""


@command.command(
    help=f"Run the stage train, even if it has finished before.\n\n{OF_A_RUN}",
    epilog="Example: graphmill train --conf conf/demo.yaml --output demo-output",
)
@run_argument
@run_options
@dry_run_option
def train(conf: str | None, overrides: tuple[str, ...], master: str | None, dry_run: bool) -> None:
    """Run the stage."""
    from graphmill.cli.session import run_stage
    from graphmill.cli.stages import TRAIN

    run_stage(TRAIN, conf, overrides, master, dry_run=dry_run)


@command.command(epilog="Example: graphmill evaluate demo-output --split test")
@run_argument
@run_options
@dry_run_option
@section_options(EvaluateConfig, overriding=("split", "filtered"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def evaluate(
    conf: str | None,
    overrides: tuple[str, ...],
    master: str | None,
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Rank the edges of a split against all entities.

    RUN: the output of a run, whose settings count then; or CONFIG, a file as for --conf.
    """
    from graphmill.cli.session import kept_of, session, show_plan, tell_verdict
    from graphmill.cli.stages import EVALUATE

    settings = config.load(conf, (*overrides, *as_overrides("evaluate", {"enabled": True, **chosen})))
    if dry_run:
        show_plan(settings, [EVALUATE], master)
        return
    with session(settings, master, [EVALUATE], kept=kept_of(conf, makes_model=False)) as run:
        entry = run(EVALUATE, resume=False)
    if as_json:
        intervals = {"intervals": entry["intervals"]} if "intervals" in entry else {}
        click.echo(json.dumps(entry["metrics"] | intervals))
    else:
        Console().print(_table(entry["metrics"], entry.get("intervals", {})))
        tell_verdict(run.record)
    run.report()


def _table(metrics: dict[str, Any], intervals: dict[str, Any]) -> Table:
    of_edges = f" of {metrics['of_edges']}" if metrics["sampled"] else ""
    columns = ["metric", "realistic ties", "pessimistic ties", *(["95 % interval"] if intervals else [])]
    table = Table(*columns, title=f"{metrics['num_edges']}{of_edges} edges")
    for name, value in metrics.items():
        if f"{name}_pessimistic" in metrics:
            interval = " to ".join(f"{bound:.4f}" for bound in intervals.get(name, ()))
            cells = [name, f"{value:.4f}", f"{metrics[f'{name}_pessimistic']:.4f}", interval]
            table.add_row(*cells[: len(columns)])
    return table
