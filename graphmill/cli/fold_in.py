"""`graphmill fold-in`: vectors for ids that a finished run has never seen."""

from functools import partial
from typing import Any, get_args

import click

from graphmill import storage
from graphmill.ask.fold_in.settings import FoldInOptions
from graphmill.cli import exit_codes
from graphmill.cli.options import result_options
from graphmill.cli.section_options import check_options, section_options
from graphmill.config import Config
from graphmill.config.sections.etl import FileFormat, Table
from graphmill.display import terminal
from graphmill.display.readable import number


class _Column(click.ParamType[str | int]):
    name = "column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        return int(value) if str(value).isdecimal() else str(value)


@click.command(
    "fold-in",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill fold-in output/shop --edges today.parquet --to new-vectors",
)
@click.argument("run")
@click.option(
    "--edges", multiple=True, required=True, metavar="FILE", help="Edges of new ids: file, folder, pattern."
)
@click.option(
    "--ids",
    multiple=True,
    metavar="TYPE=FILE",
    help="More new ids, which may have no edges: a table with the column `id`; repeatable.",
)
@click.option("--format", type=click.Choice(["auto", *get_args(FileFormat)]), help="Of --edges.")
@click.option("--delimiter", metavar="CHARACTER", help="Delimiter of --edges, if they are text.")
@click.option("--encoding", metavar="NAME", help="Encoding of --edges, text or JSON, as Python names it.")
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether --edges, if they are text, have a row of column names.",
)
@click.option("--lhs", type=_Column(), help="Column of left-hand sides: name, or number from 0.")
@click.option("--rhs", type=_Column(), help="Column of right-hand sides.")
@click.option("--relation", metavar="NAME", help="Relation of every row.")
@click.option("--relation-column", type=_Column(), help="Column of each row's relation.")
@click.option("--weight", type=_Column(), help="Column of weights.")
@click.option("--no-weight", is_flag=True, help="All edges weigh 1, though the run's tables have weights.")
@section_options(FoldInOptions, without=["num_known_edges"])
@result_options
def command(
    settings: Config,
    edges: tuple[str, ...],
    ids: tuple[str, ...],
    to: str,
    no_weight: bool,
    master: str | None,
    **others: Any,
) -> None:
    """Write vectors for new ids, from their edges with known ids.

    RUN is the output folder of a run, or its run.json. Nothing of it changes. The tables are read as the
    run's own; options of columns and formats say otherwise.
    """
    from etl.pieces import edge_table, id_table, relations_of, write_pieces
    from graphmill.ask.fold_in import job
    from graphmill.cli.result_session import result_session

    check_options({"--no-weight": ["--weight"]}, {})
    options = FoldInOptions(**{key: others.pop(key) for key in FoldInOptions.model_fields if key in others})
    given = {key: value for key, value in others.items() if value is not None}
    given |= {"weight": None} if no_weight else {}
    tables: list[Table] = [edge_table(settings, edges, given)]
    for text in ids:
        entity_type, equals, path = text.partition("=")
        if not equals or entity_type not in settings.entities:
            raise click.UsageError(f"--ids {text}: expected TYPE=FILE, types: {', '.join(settings.entities)}")
        tables.append(id_table([path], entity_type, {}))
    described = {"edges": list(edges), "ids": list(ids)}
    uris = [storage.absolute(path) for path in (*edges, *(text.partition("=")[2] for text in ids))]
    request = job.Request(described, uris, options)
    job.check(settings, request, to)
    read = partial(write_pieces, settings, tables, relations_of(settings))
    with result_session(settings, master, job.__name__, [to]) as (client, claim):
        figures = job.run(settings, request, read, to, client, claim)
    terminal.show_table("fold-in", _summary(figures))
    terminal.say(f"vectors: {to}")


def _summary(figures: dict[str, Any]) -> dict[str, str]:
    rows = {
        "rows": "num_rows",
        "new ids": "num_ids",
        "without edges": "num_without_edges",
        "edges used": "num_edges",
        "edges of known ids, ignored": "num_between_known",
        "edges between new ids, ignored": "num_between_new",
        "edges over --max-edges, ignored": "num_over_limit",
        "ids of --ids that the run knows": "num_known_ids",
    }
    shown = {name: number(figures[key]) for name, key in rows.items() if figures.get(key)}
    return shown | {"seconds": f"{figures['seconds']:.1f}"}
