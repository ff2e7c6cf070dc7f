"""The command `graphmill init`: a configuration for raw tables."""

import shlex

import click

from etl.survey.look import look_at
from etl.survey.roles import guess
from etl.survey.text import configuration
from graphmill import storage
from graphmill.cli import exit_codes
from graphmill.config import from_mapping
from graphmill.config.defaults import applied
from graphmill.config.yaml_text import parsed
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
def command(tables: tuple[str, ...], target: str | None, output: str | None) -> None:
    """Look at raw tables, and write a configuration that runs.

    TABLE is a file, a folder or a pattern: parquet, CSV, TSV, ORC or JSON lines, or the folder of a table of
    Delta Lake or Iceberg, local or on HDFS. The beginning of each table is read. Comments in the
    configuration say what was found.
    """
    graph = guess(look_at(tables))
    name = storage.name(tables[0].rstrip("/")).partition(".")[0]
    text = configuration(graph, output or f"output/{name}", shlex.join(["graphmill", "init", *tables]))
    from_mapping(applied(parsed(text, "the configuration"))[0])
    if target is None:
        click.echo(text, nl=False)
        return
    if storage.exists(target):
        raise ConfigError(f"{target}: there is a file of that name; remove it, or choose another --to")
    storage.write_text(target, text)
    click.echo(f"{target}: {len(graph.edges)} tables of edges, entity types {', '.join(graph.types)}")
    click.echo(f"next: graphmill pipeline --conf {shlex.quote(target)}")
