"""The command `graphmill check`."""

from datetime import datetime

import click

from graphmill.cli import exit_codes
from graphmill.cli.options import date_option, load_for, run_argument, run_options


@click.command(
    "check", context_settings=exit_codes.CONTEXT, epilog="Example: graphmill check --conf conf/demo.yaml"
)
@date_option
@run_argument
@run_options
def command(conf: str | None, overrides: tuple[str, ...], master: str | None, day: datetime | None) -> None:
    """Check a configuration; print what a run would take.

    The tables are looked at, and nothing is started.
    """
    from graphmill.cli.plan import show_plan
    from graphmill.cli.stages import stages_of

    settings = load_for(day, conf, overrides)
    if settings is not None:
        show_plan(settings, stages_of(settings), master)
