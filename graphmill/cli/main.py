"""The command `graphmill`, which has all commands."""

import json
import shlex
import sys
from typing import Annotated, Any, Literal

import click
from pydantic import Field

from graphmill import checkpoints, storage
from graphmill.cli import ask, etl, exit_codes, pipeline, remap, train
from graphmill.cli.options import cluster_settings, conf_option, output_options, run_options, set_option
from graphmill.cli.section_options import check_options, section_options
from graphmill.config.plugins import read_plugins
from graphmill.config.section import Flag, Section, validated
from graphmill.config.values import Strings
from graphmill.display import terminal
from graphmill.errors import ConfigError
from graphmill.version import __version__


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, stages first."""
        return list(self.commands)


@click.group(cls=_Group, context_settings=exit_codes.CONTEXT)
@click.version_option(__version__)
def command() -> None:
    """Turn raw edges with string ids into embeddings under the same ids."""


@click.command("init", epilog="Example: graphmill init ratings.csv --to ratings.yaml")
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option("--to", "target", metavar="FILE", help="File to write (default: standard output).")
@click.option(
    "--output", metavar="FOLDER", help="Folder of the run's results (default: the first table's name)."
)
@click.option("--lhs", metavar="COLUMN", help="Left-hand sides: name of a column, or its number from 0.")
@click.option("--rhs", metavar="COLUMN", help="Right-hand sides.")
@click.option("--relation", metavar="COLUMN", help="Relations.")
def init(tables: tuple[str, ...], target: str | None, output: str | None, **asked: str | None) -> None:
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
        click.echo(f"{target}: tables of edges: {len(graph.edges)}, entity types: {', '.join(graph.types)}")
    for edges in graph.edges:
        click.echo(f"{edges.look.path}: {edges.summary_line()}", err=True)
    if target is not None:
        click.echo(f"next: graphmill pipeline --conf {shlex.quote(target)}")


class TuneOptions(Section):
    """Limits of a search, and the file to write."""

    minutes: float = Field(gt=0, description="Time of the search.")
    most: Annotated[int, Flag("--candidates")] = Field(27, ge=2, description="Candidates at most.")
    target: Annotated[str, Flag("--to", "FILE")] = Field("tuned.yaml", description="Configuration to write.")


@click.command("tune", epilog="Example: graphmill tune --conf shop.yaml --minutes 10 --to tuned.yaml")
@run_options
@section_options(TuneOptions)
def tune(conf: str | None, overrides: tuple[str, ...], master: str | None, **options: Any) -> None:
    """Try settings of training; write the best configuration.

    Tried are rates, regularization, dimension, negatives and batches, in short trainings on the densest part
    of the graph, judged by the filtered MRR of validation edges. The tables are read first, if that is not
    done; this time is not counted. The run's own results stay as they are: all files are in the folder `tune`
    of its output. A search that was stopped goes on.
    """
    from graphmill.cli import tuning

    tuning.tune(conf, overrides, master, **validated(TuneOptions, options).model_dump())


for subcommand in (
    init,
    pipeline.check,
    pipeline.command,
    etl.command,
    train.train,
    train.evaluate,
    ask.predict,
    ask.export,
    ask.fold_in,
    ask.features,
    tune,
    remap.remap,
    remap.neighbors,
):
    command.add_command(subcommand)


@command.command(epilog="Example: graphmill follow application_1795176752464_0017")
@click.argument("application")
@conf_option
@set_option
def follow(application: str, conf: str | None, overrides: tuple[str, ...]) -> None:
    """Show the output of a driver in a YARN container.

    The command ends with the driver's exit code. APPLICATION is what a command with --deploy-mode cluster has
    named. --conf and --set are needed only for cluster.yarn_classpath.
    """
    from graphmill.cluster import deploy

    sys.exit(deploy.follow(application, cluster_settings(conf, overrides)))


class LegacyOptions(Section):
    """Keys of the reading of a legacy source."""

    index_base: Literal["auto", 0, 1] = Field(
        "auto", description="First number in a legacy source; auto: the names of its files decide."
    )


class ConvertOptions(LegacyOptions):
    """Keys of the reading of a checkpoint, and of its writing."""

    target_format: Annotated[Literal[*checkpoints.FORMATS], Flag("--format")] = Field(  # type: ignore[valid-type]
        description="Format to write; GraphMill recognises the format of SOURCE_URI."
    )
    num_partitions: Annotated[int, Flag("--partitions")] = Field(
        1, ge=1, description="With --id-map: partitions of each entity type."
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="With --id-map: seed of the hash that places raw ids, the key seed of later runs.",
    )
    version: int | None = Field(None, ge=0, description="Version to read (default: the committed one).")
    entity_path: Annotated[str | None, Flag(metavar="URI")] = Field(
        None, description="Entity counts: the partitions of the source."
    )
    shard_num: Annotated[int, Flag("--shards")] = Field(1, ge=1, description="Shards of a RecIS target.")
    allow_non_finite: bool = Field(False, description="Write NaN and infinity too, else an error.")
    plugins: Annotated[Strings, Flag(metavar="FILE")] = Field(
        (), description="File of the operators that are plug-ins."
    )


@command.command(epilog="Example: graphmill convert demo-output/checkpoint model --format recis --shards 4")
@click.argument("source_uri")
@click.argument("target_uri")
@section_options(ConvertOptions)
@section_options(remap.IdMapOptions)
def convert(
    source_uri: str,
    target_uri: str,
    target_format: str,
    plugins: tuple[str, ...],
    id_maps: tuple[str, ...],
    id_map_columns: str | None,
    leave_out: bool | None,
    num_partitions: int,
    seed: int,
    **options: Any,
) -> None:
    """Write a checkpoint in another format.

    Reads SOURCE_URI, and writes TARGET_URI.
    """
    from graphmill import convert as conversion
    from graphmill.checkpoints.id_maps import IdMaps, parse_id_maps
    from graphmill.run import lock

    of_maps = ("--id-map-columns", "--leave-out", "--partitions", "--seed")
    check_options({}, dict.fromkeys(of_maps, "--id-map") | {"--shards": "--format recis"})
    read_plugins(plugins)
    with lock.held(whole=[target_uri]) as claim:
        maps = parse_id_maps(id_maps, id_map_columns)
        options["id_maps"] = IdMaps(maps, num_partitions, seed, bool(leave_out)) if maps else None
        done = conversion.convert(source_uri, target_uri, target_format, **options, claim=claim)
    click.echo(f"source  {done.source.format:<10} {conversion.described(done.source)}")
    click.echo(f"target  {done.target.format:<10} {conversion.described(done.target)}")
    for what in done.not_kept:
        click.echo(f"not kept: {what}")
    rate = done.num_bytes / 1e6 / max(done.elapsed_s, 1e-9)
    click.echo(f"{done.num_bytes / 1e6:.1f} MB of embeddings in {done.elapsed_s:.1f} s, {rate:.0f} MB/s")


class ConvertInputOptions(LegacyOptions):
    """Keys of the reading of PBG's input, and of its writing."""

    entity_path: Annotated[str, Flag(metavar="URI")] = Field(description="Entity counts.")
    edge_paths: Annotated[Strings, Flag("--edge-path", "URI")] = Field(
        (), description="Bucket files; repeatable."
    )
    target_format: Annotated[Literal["pbg", "pbg-legacy"], Flag("--format")] = Field(
        description="Format to write."
    )


@command.command(
    "convert-input",
    epilog="Example: graphmill convert-input new --entity-path old --edge-path old/train --format pbg",
)
@click.argument("target_uri")
@section_options(ConvertInputOptions)
def convert_input(
    target_uri: str,
    entity_path: str,
    edge_paths: tuple[str, ...],
    target_format: str,
    index_base: Literal["auto", 0, 1],
) -> None:
    """Convert PBG's input from its legacy format, or to it.

    Reads entity counts and bucket files. Writes TARGET_URI/entities and TARGET_URI/edges/NAME, with the NAME
    of each edge path.
    """
    from graphmill.convert import legacy
    from graphmill.run import lock

    with lock.held(whole=[target_uri]) as claim:
        if target_format == "pbg":
            legacy.convert_inputs(entity_path, edge_paths, target_uri, index_base, claim)
            return
        for what in legacy.export_inputs(entity_path, edge_paths, target_uri, claim):
            click.echo(f"not kept: {what}")


@command.command(epilog="Examples: graphmill report output/fb15k237, graphmill report monday tuesday")
@click.argument("uris", metavar="URI...", nargs=-1, required=True)
@click.option("--output", metavar="FILE", help="Default: report.html in the run; comparison.html of several.")
@click.option("--labels", metavar="FILE", help="Colour the map by a column of this file (parquet or CSV).")
@click.option(
    "--label-columns",
    nargs=2,
    default=("id", "label"),
    show_default=True,
    help="Its columns of ids and of labels.",
)
@click.option("--type", "entity_type", metavar="TYPE", help="Entity type of --labels (default: the first).")
@click.option("--before", metavar="URI", help="Earlier run: show how far vectors have moved.")
@output_options
def report(
    uris: tuple[str, ...],
    output: str | None,
    labels: str | None,
    label_columns: tuple[str, str],
    entity_type: str | None,
    before: str | None,
) -> None:
    """Write report.html of a run, or a comparison of runs.

    URI is the output of a run, or its run.json.
    """
    from graphmill import report as reports
    from graphmill.library.run import Run
    from graphmill.report.maps import Labels

    check_options({}, {"--label-columns": "--labels", "--type": "--labels"})
    runs = [Run(uri) for uri in uris]
    if len(runs) == 1:
        colours = Labels(labels, label_columns, entity_type) if labels else None
        terminal.say(reports.write(runs[0], colours, Run(before) if before else None, output))
    elif labels or before:
        raise click.UsageError("--labels, --before: expected one run, found several")
    else:
        reports.write_comparison(runs, output := output or "comparison.html")
        terminal.say(output)


@command.command(epilog="Example: graphmill schema > graphmill.schema.json")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["json", "markdown"]),
    default="json",
    show_default=True,
    help="JSON schema, or a page that describes every key.",
)
def schema(kind: str) -> None:
    """Print the JSON schema of a configuration, for editors."""
    from graphmill.config import reference  # imports the classes of all stages

    page = json.dumps(reference.json_schema(), indent=1) + "\n" if kind == "json" else reference.markdown()
    click.echo(page, nl=False)


def main() -> None:
    """Entry of the console script."""
    exit_codes.main(command)
