"""`python -m train` and `python -m train evaluate`: the stage's door."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from graphmill import config, door


class _TrainByDefault(click.Group):
    """A group whose command `train` need not be named: `python -m train --conf FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help"):
            args = ["train", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_TrainByDefault)
def command() -> None:
    """Train embeddings (the default), or evaluate a checkpoint."""


command.add_command(door.stage_command("train"))


@command.command()
@door.run_options
@click.option("--split", metavar="NAME", help="Edges to rank (default: evaluate.split, test).")
@click.option("--filtered/--unfiltered", default=None, help="Leave other known edges out of the ranking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def evaluate(
    conf: str | None,
    overrides: tuple[str, ...],
    master: str | None,
    split: str | None,
    filtered: bool | None,
    as_json: bool,
) -> None:
    """Rank every edge of a split against all entities, both sides."""
    chosen = [f"evaluate.split={split}"] if split is not None else []
    chosen += [f"evaluate.filtered={str(filtered).lower()}"] if filtered is not None else []
    settings = config.load(conf, (*overrides, *chosen))
    with door.session(settings, master) as run:
        metrics = run("evaluate", resume=False)["metrics"]
    if as_json:
        click.echo(json.dumps(metrics))
    else:
        Console().print(_table(metrics))


def _table(metrics: dict[str, Any]) -> Table:
    table = Table("metric", "realistic ties", "pessimistic ties", title=f"{metrics['num_edges']} edges")
    for name in (each for each in metrics if f"{each}_pessimistic" in metrics):
        table.add_row(name, f"{metrics[name]:.4f}", f"{metrics[name + '_pessimistic']:.4f}")
    return table


if __name__ == "__main__":
    door.main(command)
