"""The command `graphmill tune`: a configuration with better rates, found by short trainings."""

from typing import Any

import click

from graphmill.cli import exit_codes
from graphmill.cli.options import run_options


@click.command(
    "tune",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill tune --conf shop.yaml --minutes 10 --to tuned.yaml",
)
@run_options
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Time of the search."
)
@click.option(
    "--candidates",
    "most",
    type=click.IntRange(min=2),
    default=27,
    show_default=True,
    help="Candidates at most.",
)
@click.option(
    "--to", "target", metavar="FILE", default="tuned.yaml", show_default=True, help="Configuration to write."
)
def command(**options: Any) -> None:
    """Try settings of training; write the best configuration.

    Tried are rates, regularization, dimension, negatives and batches, in short trainings on the densest part
    of the graph, judged by the filtered MRR of validation edges. The tables are read first, if that is not
    done; this time is not counted. The run's own results stay as they are: all files are in the folder `tune`
    of its output. A search that was stopped goes on.
    """
    from graphmill.cli.tuning import tune

    tune(**options)
