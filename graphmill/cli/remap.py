"""`graphmill remap`, `graphmill neighbors`: a run or GraphStorm's outputs under raw ids, and neighbours."""

import json
import logging
from functools import partial
from typing import Annotated, Any

import click
from pydantic import Field

from graphmill import config, storage
from graphmill.cli import exit_codes
from graphmill.cli.options import (
    StageGroup,
    cluster_settings,
    conf_of,
    conf_option,
    dry_run_option,
    run_argument,
    run_options,
    set_option,
)
from graphmill.cli.section_options import check_options, section_options
from graphmill.config.section import Flag, Section
from graphmill.config.values import Strings
from graphmill.display import terminal
from graphmill.errors import ConfigError

# GraphStorm's flags that take several values: `--pred-ntypes user item`.
_LISTS = ("--column-names", "--pred-etypes", "--pred-ntypes", "--target-etype", "--target-ntype")
_CODEC = click.Choice(["none", "snappy", "lz4", "zstd"])
_LEVEL = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
_SAVED = ("node_id_mapping", "node_emb_dir", "prediction_dir", "yaml_config_file")


class _AsGraphStorm(click.Command):
    """A command with GraphStorm's flags of several values, and of its launchers beside --cf."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(arg.partition("=")[0] in ("--cf", "--yaml_config_file") for arg in args):
            args = self._without_others(args)
        return super().parse_args(ctx, _split_lists(args))

    def _without_others(self, args: list[str]) -> list[str]:
        """`args` without the flags of a training, which a launcher passes on."""
        known = {"-h", "--help", *(option for param in self.params for option in param.opts)}
        kept: list[str] = []
        others: list[str] = []
        is_known = True
        for arg in args:
            if arg.startswith("--"):
                is_known = arg.partition("=")[0] in known
                others += [] if is_known else [arg.partition("=")[0]]
            kept += [arg] if is_known else []
        if others:
            logging.getLogger("graphmill").info(
                "remap: %s: not of this command, ignored beside --cf", ", ".join(others)
            )
        return kept


def _split_lists(args: list[str]) -> list[str]:
    split: list[str] = []
    flag: str | None = None
    for arg, following in zip(args, [*args, "--"][1:], strict=True):
        if not arg.startswith("--"):
            split += [flag, arg] if flag else [arg]
            continue
        flag = arg if arg in _LISTS else None
        if flag and following.startswith("--"):
            raise click.UsageError(f"{flag}: expected one value or several, found none")
        split += [] if flag else [arg]
    return split


class _Truth(click.ParamType[bool]):
    """true or false; GraphStorm's own command reads every other text as false."""

    name = "true|false"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        known = {"true": True, "1": True, "false": False, "0": False}
        if (truth := known.get(str(value).lower())) is None:
            self.fail(f"expected true or false, found {value!r}", param, ctx)
        return truth


class IdMapOptions(Section):
    """A map from raw ids to int64 ids."""

    id_maps: Annotated[Strings, Flag("--id-map", "TYPE=FILE")] = Field(
        (),
        description="Raw ids of a RecIS table's ids: parquet, or int64 for the ids themselves; repeatable.",
    )
    id_map_columns: Annotated[str | None, Flag(metavar="RAW,ID")] = Field(
        None, description="Columns of raw ids and int64 ids in the maps (default: by their types)."
    )
    leave_out: bool | None = Field(
        None, description="Leave out ids that the maps cannot translate, else an error."
    )


@click.group("remap", cls=StageGroup, context_settings=exit_codes.CONTEXT)
def command() -> None:
    """Write embeddings and predictions under their raw ids, or look up neighbours."""


@command.command("remap", cls=_AsGraphStorm, epilog="Example: graphmill remap demo-output")
@run_argument
@run_options
@dry_run_option
@click.option("--node-id-mapping", metavar="FOLDER", help="GraphStorm's maps: raw_id_mappings.")
@click.option("--node-emb-dir", metavar="FOLDER", help="GraphStorm's embeddings: save_embed_path.")
@click.option("--prediction-dir", metavar="FOLDER", help="GraphStorm's predictions: save_prediction_path.")
@click.option(
    "--yaml_config_file", "--cf", metavar="FILE", help="GraphStorm's YAML; it wins over these flags."
)
@click.option("--pred-etypes", multiple=True, metavar="SRC,REL,DST ...", help="Default: as result_info.json.")
@click.option("--pred-ntypes", multiple=True, metavar="TYPE ...", help="Default: as result_info.json.")
@click.option("--output-dir", metavar="FOLDER", help="Folder of the tables (default: beside the input).")
@click.option("--output-format", type=click.Choice(["parquet", "csv"]), help="Default: parquet.")
@click.option("--output-delimiter", metavar="CHARACTER", help="Delimiter of CSV (default: a comma).")
@click.option("--column-names", multiple=True, metavar="OLD,NEW ...", help="Rename columns.")
@click.option("--output-chunk-size", type=click.IntRange(1), help="Rows of an output file (default: all).")
@click.option("--preserve-input", type=_Truth(), help="Keep the input; default: delete it in the end.")
@click.option("--num-processes", type=click.IntRange(1), help="Worker processes, without --master.")
@click.option("--rank", type=click.IntRange(0), default=0, help="Rank 0 does the work of all ranks.")
@click.option("--world-size", type=click.IntRange(1), default=1, help="Processes that the launcher starts.")
@click.option("--with-shared-fs", type=_Truth(), help="false: each rank has its own files, on its own disk.")
@click.option(
    "--checkpoint-path", metavar="FOLDER", help="A checkpoint: ours, PBG's (v1, legacy), or RecIS'."
)
@click.option("--entity-path", metavar="FOLDER", help="Raw ids of its rows: entity counts and index.")
@section_options(IdMapOptions)
@click.option("--compression", type=_CODEC, help="Codec of ids (snappy).")
@click.option("--value-compression", type=_CODEC, help="Codec of vectors (none).")
@click.option("--fixed-size-list", is_flag=True, default=None, help="Vectors as fixed_size_list, not list.")
@click.option("--allow-non-finite", is_flag=True, default=None, help="Write NaN and infinity too.")
@click.option("--logging-level", type=_LEVEL)
@click.option("--part-config", hidden=True)
@click.option("--save-embed-path", hidden=True)
@click.option("--save-prediction-path", hidden=True)
@click.option("--target-etype", multiple=True, hidden=True)
@click.option("--target-ntype", multiple=True, hidden=True)
def remap(
    conf: str | None,
    overrides: tuple[str, ...],
    master: str | None,
    dry_run: bool,
    logging_level: str | None,
    **flags: Any,
) -> None:
    """Write vectors by raw id: of a run, or GraphStorm's.

    Of a trained run (RUN, its output; or --conf), or of GraphStorm's outputs (GraphStorm's flags).
    """
    if logging_level is not None:
        logging.getLogger("graphmill").setLevel(logging_level.upper())
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    master = master or (f"local[{given['num_processes']}]" if "num_processes" in given else None)
    if any(name in given for name in _SAVED):
        _remap_saved(conf, overrides, master, given | ({"dry_run": True} if dry_run else {}))
        return
    from graphmill.cli.session import kept_of, session, show_plan
    from graphmill.cli.stages import REMAP
    from graphmill.run.record import Kept
    from remap.sources import load_settings

    settings = load_settings(conf, overrides, given)
    if _is_idle(given["rank"], given["world_size"]):
        return
    if dry_run:
        show_plan(settings, [REMAP], master)
        return
    of_checkpoint = conf is None and "checkpoint_path" in given
    kept: Kept = "all" if of_checkpoint else kept_of(conf, makes_model=False)
    with session(settings, master, [REMAP], kept=kept, is_chosen=not of_checkpoint) as run:
        run(REMAP, resume=False)
    run.report()


def _is_idle(rank: int, world_size: int, with_shared_fs: bool = True) -> bool:
    """Tell whether rank 0 does the work of this process, which the launcher started."""
    if rank >= world_size:
        raise ConfigError(f"--rank {rank}: expected a rank below --world-size, {world_size}")
    if rank and with_shared_fs:
        logging.getLogger("graphmill").info("remap: rank 0 does the work of all ranks")
        return True
    return False


def _remap_saved(
    conf: str | None, overrides: tuple[str, ...], master: str | None, given: dict[str, Any]
) -> None:
    from graphmill import cluster
    from graphmill.display import progress
    from remap.graphstorm import job, options

    foreign = {"checkpoint_path", "entity_path", "id_maps", "id_map_columns", "leave_out", "dry_run"}
    if not foreign.isdisjoint(given) or not all(override.startswith("cluster.") for override in overrides):
        raise ConfigError(
            "--checkpoint-path, --entity-path, --id-map, --dry-run, --set (but of cluster): they are for a "
            "run of ours, and cannot be used with GraphStorm's flags"
        )
    settings = cluster_settings(conf, overrides)
    is_idle = _is_idle(given.pop("rank"), given.pop("world_size"), given.get("with_shared_fs", True))
    given.pop("num_processes", None)
    yaml_uri = given.pop("yaml_config_file", None)
    wanted = options.make_options(given, yaml_uri)
    if is_idle:
        return
    if wanted is None:
        logging.getLogger("graphmill").warning("remap: the run saved nothing: nothing to remap")
        return

    with progress.displayed():
        figures = job.run(wanted, partial(cluster.connect, master, settings))
    click.echo(json.dumps(figures))


class NeighborsOptions(Section):
    """An id, and which of its neighbours to print."""

    embeddings: Annotated[str | None, Flag(metavar="FOLDER")] = Field(
        None, description="Tables of vectors (default: the run's embedding_path)."
    )
    raw_id: Annotated[str, Flag("--id")] = Field(description="Raw id of the entity.")
    k: int = Field(10, ge=1, description="Number of neighbours.")
    entity_type: Annotated[str | None, Flag("--type", "TYPE")] = Field(
        None, description="Entity type of the id (default: the first with it)."
    )
    relation: Annotated[str | None, Flag(metavar="NAME")] = Field(
        None, description="Entities at the other end of this relation, by the model's score."
    )
    inverse: bool = Field(False, description="With --relation: follow it backwards.")
    with_itself: bool = Field(
        False,
        description="With --relation: the id too (default: where a training edge of the relation is a loop).",
    )
    as_json: Annotated[bool, Flag("--json")] = Field(False, description="Print JSON.")


@command.command(epilog="Example: graphmill neighbors demo-output --id bash")
@run_argument
@conf_option
@set_option
@section_options(NeighborsOptions)
def neighbors(run: str | None, conf: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Print the nearest neighbours of an id. RUN: the output of a run, instead of --conf."""
    from graphmill.ask import neighbors

    check_options({"--relation": ("--type",)}, {"--inverse": "--relation", "--with-itself": "--relation"})
    asked = config.validated(NeighborsOptions, options)
    conf = conf_of(run, conf)
    settings = config.load(conf, overrides) if conf or overrides else None
    folder = asked.embeddings or (settings.embedding_path if settings else None)
    if folder is None or (asked.relation and settings is None):
        raise click.UsageError("RUN or --conf: missing; or --embeddings, where no --relation is asked about")
    folder = storage.absolute(folder)
    if asked.relation and settings:
        entity_type, nearest = neighbors.along_relation(
            settings, folder, asked.raw_id, asked.k, asked.relation, asked.inverse, asked.with_itself
        )
    else:
        entity_type, nearest = neighbors.neighbors(folder, asked.raw_id, asked.k, asked.entity_type)
    if asked.as_json:
        click.echo(
            json.dumps({"type": entity_type, "neighbors": [neighbor._asdict() for neighbor in nearest]})
        )
    else:
        for place, neighbor in enumerate(nearest, start=1):
            click.echo(f"{place:3d}  {neighbor.similarity:9.4f}  {neighbor.id}")
        if not nearest:
            terminal.say(f"{asked.raw_id}: there is no other id of {entity_type!r} in {folder}")
