"""etl -> train -> evaluate -> remap as one run that can be resumed: `dask-submit pipeline.py`."""

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from graphmill import config, door
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.vocab import TRAIN_SPLIT

STAGES = ("etl", "train", "evaluate", "remap")


@click.command("pipeline")
@door.run_options
def command(conf: str | None, overrides: tuple[str, ...], master: str | None) -> None:
    """Run all stages; one that is finished, from the same settings and inputs, is skipped."""
    settings = config.load(conf, overrides)
    _check(settings)
    for name in STAGES:  # a typo in the last stage's section must not wait for the first ones
        door.stage_job(name).fingerprint(settings)
    with door.session(settings, master) as run:
        entries = {name: run(name, resume=True) for name in STAGES}
    Console().print(summary(entries))
    click.echo(f"embeddings: {settings.embedding_path}")


def _check(settings: Config) -> None:
    """Refuse to train on other edges than the ones that etl writes.

    Raises:
        ConfigError: the train split is not among `edge_paths`.
    """
    written = settings.split_path(TRAIN_SPLIT)
    if written not in settings.edge_paths:
        read = ", ".join(settings.edge_paths)
        raise ConfigError(f"edge_paths: etl writes {written}, training reads {read}; let them agree")


def summary(entries: dict[str, dict[str, Any]]) -> Table:
    """A table of the stages' seconds and of the metrics."""
    table = Table(title="pipeline")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, entry in entries.items():
        table.add_row(f"{name}, seconds", f"{entry['seconds']:.1f}")
    for name, value in entries["evaluate"]["metrics"].items():
        if not name.endswith("_pessimistic"):
            table.add_row(name, str(value) if isinstance(value, int) else f"{value:.4f}")
    return table


def main() -> None:
    """Entry of `python -m graphmill.pipeline`."""
    door.main(command)


if __name__ == "__main__":
    main()
