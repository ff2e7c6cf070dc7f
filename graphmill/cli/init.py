"""The command `graphmill init`: a configuration for raw tables."""

import shlex

import click

from graphmill import storage
from graphmill.cli import exit_codes
from graphmill.errors import ConfigError


@click.command(
    "init",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill init ratings.csv --to ratings.yaml",
)
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option("--to", "target", metavar="FILE", help="File to write (default: standard output).")
@click.option(
    "--output", metavar="FOLDER", help="Folder of the run's results (default: the first table's name)."
)
@click.option("--lhs", metavar="COLUMN", help="Left-hand sides: name of a column, or its number from 0.")
@click.option("--rhs", metavar="COLUMN", help="Right-hand sides.")
@click.option("--relation", metavar="COLUMN", help="Relations.")
def command(tables: tuple[str, ...], target: str | None, output: str | None, **asked: str | None) -> None:
    """Look at raw tables, and write a configuration that runs.

    TABLE is a file, a folder or a pattern: parquet, CSV, TSV, ORC or JSON lines, or the folder of a table of
    Delta Lake or Iceberg, local or on HDFS. The beginning of each table is read. Comments in the
    configuration say what was found, and how sure that is; --lhs, --rhs and --relation name the columns.
    """
    from etl.survey.first_configuration import first_configuration  # reads tables, which help does without

    text, graph = first_configuration(tables, output, asked)
    if target is None:
        click.echo(text, nl=False)
    elif storage.exists(target):
        raise ConfigError(f"{target}: there is a file of that name; remove it, or choose another --to")
    else:
        storage.write_text(target, text)
        click.echo(f"{target}: {len(graph.edges)} tables of edges, entity types {', '.join(graph.types)}")
    for edges in graph.edges:
        click.echo(f"{edges.look.path}: {edges.summary_line()}", err=True)
    if target is not None:
        click.echo(f"next: graphmill pipeline --conf {shlex.quote(target)}")
