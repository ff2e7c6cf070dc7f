"""The command of one stage."""

import click

from graphmill import config
from graphmill.cli import exit_codes
from graphmill.cli.check import show_plan
from graphmill.cli.options import OF_A_RUN, dry_run_option, run_argument, run_options
from graphmill.cli.session import session
from graphmill.display import terminal
from graphmill.run.job import job_of
from graphmill.run.output_checks import check_storage
from graphmill.run.settled import settled
from graphmill.run.summaries import summary


def stage_command(name: str) -> click.Command:
    """Make the command that runs the stage `name` alone, even if it has finished before."""

    @click.command(
        name,
        context_settings=exit_codes.CONTEXT,
        help=f"Run the stage {name}, even if it has finished before.\n\n{OF_A_RUN}",
        epilog=f"Example: graphmill {name} --conf conf/demo.yaml --output demo-output",
    )
    @run_argument
    @run_options
    @dry_run_option
    def command(conf: str | None, overrides: tuple[str, ...], master: str | None, dry_run: bool) -> None:
        run_stage(name, conf, overrides, master, dry_run=dry_run)

    return command


def run_stage(
    name: str, conf: str | None, overrides: tuple[str, ...], master: str | None, *, dry_run: bool
) -> None:
    """Run the stage `name` alone, or show what it takes."""
    settings = config.load(conf, overrides)
    if dry_run:
        show_plan(settings, [name], master)
        return
    check_storage(settings, [name])
    job_of(name).check(settled(settings))
    with session(settings, master, [name]) as run:
        entry = run(name, resume=False)
    terminal.show_table(name, summary({name: entry}))
    run.report()
