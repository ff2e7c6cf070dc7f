"""The command of one stage."""

import click

from graphmill import config
from graphmill.cli import exit_codes
from graphmill.cli.check import show_plan
from graphmill.cli.options import OF_A_RUN, dry_run_option, run_argument, run_options
from graphmill.cli.session import session
from graphmill.display import terminal
from graphmill.run.auto_values import resolve_auto_values
from graphmill.run.job import Stage
from graphmill.run.output_checks import check_storage
from graphmill.run.summaries import summary


def stage_command(stage: Stage) -> click.Command:
    """Make the command that runs one stage alone, even if it has finished before."""

    @click.command(
        stage.name,
        context_settings=exit_codes.CONTEXT,
        help=f"Run the stage {stage.name}, even if it has finished before.\n\n{OF_A_RUN}",
        epilog=f"Example: graphmill {stage.name} --conf conf/demo.yaml --output demo-output",
    )
    @run_argument
    @run_options
    @dry_run_option
    def command(conf: str | None, overrides: tuple[str, ...], master: str | None, dry_run: bool) -> None:
        run_stage(stage, conf, overrides, master, dry_run=dry_run)

    return command


def run_stage(
    stage: Stage, conf: str | None, overrides: tuple[str, ...], master: str | None, *, dry_run: bool
) -> None:
    """Run one stage alone, or show what it takes."""
    settings = config.load(conf, overrides)
    if dry_run:
        show_plan(settings, [stage], master)
        return
    check_storage(settings, [stage])
    stage.job.check(resolve_auto_values(settings))
    with session(settings, master, [stage]) as run:
        entry = run(stage, resume=False)
    terminal.show_table(stage.name, summary({stage.name: entry}))
    run.report()
