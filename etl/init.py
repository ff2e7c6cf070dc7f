"""The command `graphmill init`: a configuration for raw tables."""

import shlex

import click

from etl.survey.graph import Graph
from etl.survey.look import look_at
from etl.survey.outlook import outlook
from etl.survey.roles import Asked, guess
from etl.survey.text import configuration, left_out
from graphmill import storage
from graphmill.cli import exit_codes
from graphmill.config import Config, from_mapping
from graphmill.config.defaults import applied
from graphmill.config.yaml_text import parsed
from graphmill.errors import ConfigError
from graphmill.run.settled import with_sizes
from graphmill.vocab import TRAIN_SPLIT


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
    graph = guess(look_at(tables), Asked(**asked))
    name = storage.name(tables[0].rstrip("/")).partition(".")[0]
    options = [word for key, value in asked.items() if value for word in (f"--{key}", value)]
    command_line = shlex.join(["graphmill", "init", *tables, *options])
    text = configuration(graph, output or f"output/{name}", command_line)
    text += left_out(*_settled(text))
    if target is None:
        click.echo(text, nl=False)
        _tell(graph)
        return
    if storage.exists(target):
        raise ConfigError(f"{target}: there is a file of that name; remove it, or choose another --to")
    storage.write_text(target, text)
    click.echo(f"{target}: {len(graph.edges)} tables of edges, entity types {', '.join(graph.types)}")
    _tell(graph)
    click.echo(f"next: graphmill pipeline --conf {shlex.quote(target)}")


def _settled(text: str) -> tuple[Config, int]:
    """Return the settings that a run of the configuration would take, and about how many edges it has."""
    filled, chosen = applied(parsed(text, "the configuration"))
    settings = from_mapping(filled)
    size = outlook(settings).size
    assert size is not None
    num_entities = {name: (count,) for name, count in size.num_entities.items()}
    num_edges = size.num_edges[TRAIN_SPLIT]
    return with_sizes(settings.with_chosen(chosen), num_entities, num_edges), num_edges


def _tell(graph: Graph) -> None:
    for edges in graph.edges:
        click.echo(f"{edges.look.path}: {edges.told()}", err=True)
