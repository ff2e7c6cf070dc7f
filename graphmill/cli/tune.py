"""The command `graphmill tune`: a configuration with better rates, found by short trainings."""

from typing import Annotated, Any

import click
from pydantic import Field

from graphmill.cli import exit_codes
from graphmill.cli.options import run_options
from graphmill.cli.section_options import section_options
from graphmill.config.section import Flag, Section


class TuneOptions(Section):
    """Limits of a search, and the file to write."""

    minutes: float = Field(gt=0, description="Time of the search.")
    most: Annotated[int, Flag("--candidates")] = Field(27, ge=2, description="Candidates at most.")
    target: Annotated[str, Flag("--to", "FILE")] = Field("tuned.yaml", description="Configuration to write.")


@click.command(
    "tune",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill tune --conf shop.yaml --minutes 10 --to tuned.yaml",
)
@run_options
@section_options(TuneOptions)
def command(conf: str | None, overrides: tuple[str, ...], master: str | None, **options: Any) -> None:
    """Try settings of training; write the best configuration.

    Tried are rates, regularization, dimension, negatives and batches, in short trainings on the densest part
    of the graph, judged by the filtered MRR of validation edges. The tables are read first, if that is not
    done; this time is not counted. The run's own results stay as they are: all files are in the folder `tune`
    of its output. A search that was stopped goes on.
    """
    from graphmill.cli.tuning import tune

    tune(conf, overrides, master, **options)
