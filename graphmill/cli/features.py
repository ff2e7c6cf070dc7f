"""`graphmill features`: a table with vectors joined in by raw id."""

from functools import partial
from typing import Any, get_args

import click

from graphmill.ask.features.settings import FeaturesOptions
from graphmill.cli import exit_codes
from graphmill.cli.options import result_options
from graphmill.cli.section_options import check_options, section_options
from graphmill.config import Config
from graphmill.config.sections.etl import FileFormat
from graphmill.display import terminal
from graphmill.display.readable import number


@click.command(
    "features",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill features output/shop orders.parquet --column customer_id --type customer "
    "--to orders-with-vectors",
)
@click.argument("run")
@click.argument("table", nargs=-1, required=True)
@click.option(
    "--column",
    "columns",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Column of raw ids; repeatable: several columns get vectors.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Entity type of the column; one for all columns, or one for each (default: the only type).",
)
@section_options(FeaturesOptions, without=["columns"])
@click.option("--format", type=click.Choice(["auto", *get_args(FileFormat)]), help="Of the table.")
@click.option("--delimiter", metavar="CHARACTER", help="Delimiter of text.")
@click.option("--encoding", metavar="NAME", help="Encoding of text and JSON, as Python names it.")
@click.option("--header/--no-header", default=None, help="Whether text has a row of column names.")
@result_options
def command(
    settings: Config,
    table: tuple[str, ...],
    columns: tuple[str, ...],
    types: tuple[str, ...],
    to: str,
    master: str | None,
    **options: Any,
) -> None:
    """Write a table with the vectors of its ids joined in.

    RUN is the output folder of a run, or its run.json. TABLE is a file, folder or pattern; several make one
    table. All its rows and columns stay, in their order; `has_vector` says which ids the run knows.
    """
    from etl.pieces import whole_table
    from graphmill.ask.features import job
    from graphmill.cli.result_session import result_session, tell_run

    check_options({"--components": ["--similar-to"]}, {})
    of_table = {key: options.pop(key) for key in ("format", "delimiter", "encoding", "header")}
    given = {key: value for key, value in of_table.items() if value is not None}
    request = FeaturesOptions(columns=_typed(columns, types, list(settings.entities)), **options)
    job.check(settings, request, to)
    fold_ids_in = _fold_in(settings, request)
    read = whole_table(settings, table, given)
    with result_session(settings, master, job.__name__, [to]) as (client, claim):
        figures = job.run(settings, request, read, to, client, claim, fold_ids_in)
    terminal.show_table("features", _summary(figures))
    terminal.say(f"table: {to}")
    tell_run(settings, "features", to, figures)


def _typed(columns: tuple[str, ...], types: tuple[str, ...], known: list[str]) -> dict[str, str]:
    if len(set(columns)) < len(columns):
        raise click.UsageError("--column: a column is named twice")
    if not types and len(known) > 1:
        raise click.UsageError(f"--type: missing; the run has {', '.join(known)}")
    types = types or (known[0],)
    if len(types) not in (1, len(columns)):
        raise click.UsageError(
            f"--type: expected one for all columns or one for each of {len(columns)}, found {len(types)}"
        )
    return dict(zip(columns, types * len(columns) if len(types) == 1 else types, strict=True))


def _fold_in(settings: Config, request: FeaturesOptions) -> partial[dict[str, Any]] | None:
    """A function that folds the ids of the request's edges in; None if there are no edges."""
    from etl.pieces import edge_table, relations_of, write_pieces
    from graphmill.ask.features import job
    from graphmill.ask.fold_in import job as fold_in_job

    edges = [uri for uri in request.fold_in if not job.is_folded(uri)]
    if not edges:
        return None
    tables = [edge_table(settings, edges, {})]
    read = partial(write_pieces, settings, tables, relations_of(settings))
    asked = fold_in_job.Request({"edges": edges}, edges)
    return partial(fold_in_job.run, settings, asked, read)


def _summary(figures: dict[str, Any]) -> dict[str, str]:
    rows = {
        "with a vector": "num_found",
        "folded in": "num_folded_in",
        "id not in the run": "num_missing",
        "no id": "num_without_id",
    }
    shown = {"rows": number(figures["num_rows"])}
    for column, counts in figures["columns"].items():
        shown |= {f"{column}: {text}": number(counts[key]) for text, key in rows.items() if counts[key]}
    return shown | {"seconds": f"{figures['seconds']:.1f}"}
