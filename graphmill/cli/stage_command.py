"""The command of one stage."""

import click

from graphmill import config
from graphmill.cli.options import run_options
from graphmill.cli.session import session
from graphmill.display import terminal
from graphmill.run.job import job_of
from graphmill.run.settled import settled
from graphmill.run.summaries import summary


def stage_command(name: str) -> click.Command:
    """Make the command that runs the stage `name` alone, even if it has finished before."""

    @click.command(
        name,
        help=f"Run the stage {name} of the configuration, even if it has finished before.",
        epilog=f"Example: dask-submit {name}.py --conf conf/demo.yaml --set output=demo-output",
    )
    @run_options
    def command(conf: str | None, overrides: tuple[str, ...], master: str | None) -> None:
        settings = config.load(conf, overrides)
        job_of(name).check(settled(settings))
        with session(settings, master, [name]) as run:
            entry = run(name, resume=False)
        terminal.show_table(name, summary({name: entry}))

    return command
