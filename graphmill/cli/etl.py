"""`graphmill etl`, `python -m etl`: tables of raw edges become edges of numbers."""

import functools
from collections.abc import Sequence
from typing import Any

import click

from graphmill import config, storage
from graphmill.cli import exit_codes
from graphmill.cli.options import OF_A_RUN, dry_run_option, is_configuration, run_options
from graphmill.cli.section_options import ColumnOption, Command
from graphmill.config.yaml_text import as_yaml

_HELP = f"""Run the stage etl, even if it has finished before.

{OF_A_RUN}

FILE...: tables of edges in place of etl.tables, the first for the first of edge_paths, and so on."""


def _with_files(command: Command) -> Command:
    """Tell apart the words of a command line: a run or a configuration, and files."""

    @functools.wraps(command)
    def with_files(words: Sequence[str], **others: Any) -> Any:
        has_columns = [others[side] is not None for side in ("lhs", "rhs")]
        run = words[0] if words and (is_configuration(words[0]) or not any(has_columns)) else None
        files = words[run is not None :]
        if (files or any(has_columns)) and not all(has_columns):
            raise click.UsageError("FILE...: expected both --lhs-col and --rhs-col")
        return command(run=run, files=files, **others)

    return with_files


@click.command(
    "etl",
    context_settings=exit_codes.CONTEXT,
    help=_HELP,
    epilog="Examples: graphmill etl --conf conf/demo.yaml --output demo-output, "
    "graphmill etl fb15k_config.py -l 0 -r 2 --rel-col 1 train.txt valid.txt test.txt",
)
@click.argument("words", metavar="[RUN | CONFIG] [FILE...]", nargs=-1)
@_with_files
@run_options
@dry_run_option
@click.option(
    "--lhs-col", "-l", "lhs", type=ColumnOption(), help="Of FILE: number from 0, or name, of a column."
)
@click.option("--rhs-col", "-r", "rhs", type=ColumnOption(), help="Of FILE: the right-hand sides.")
@click.option(
    "--rel-col", "relation", type=ColumnOption(), help="Of FILE: relations (default: the first one)."
)
@click.option("--delimiter", metavar="CHARACTER", help="Of FILE, if that is text (default: a tab).")
def command(
    conf: str | None,
    overrides: tuple[str, ...],
    master: str | None,
    dry_run: bool,
    files: Sequence[str],
    **form: Any,
) -> None:
    """Run the stage, on the tables of the configuration or on `files`."""
    from graphmill.cli.session import run_stage
    from graphmill.cli.stages import ETL

    if form["lhs"] is not None:
        if config.read_raw(conf, overrides).get("edge_paths") == []:
            overrides = (*overrides, f"edge_paths={as_yaml([*map(_partitioned, files)])}")
        tables = as_yaml(_tables(config.load(conf, overrides), files, **form))
        overrides = ("etl.entity_names=true", *overrides, f"etl.tables={tables}")  # PBG's import writes names
    run_stage(ETL, conf, overrides, master, dry_run=dry_run)


def _tables(
    settings: config.Config,
    files: Sequence[str],
    lhs: int | str,
    rhs: int | str,
    relation: int | str | None,
    delimiter: str | None,
) -> list[dict[str, Any]]:
    if relation is None and settings.dynamic_relations:
        raise click.UsageError("--rel-col: dynamic relations are those of a column; name it")
    if len(files) != len(settings.edge_paths):
        raise click.UsageError(
            f"FILE...: expected a file for each of edge_paths, which are {len(settings.edge_paths)} "
            f"({', '.join(settings.edge_paths)}), found {len(files)}"
        )
    named = {"relation": settings.relations[0].name} if relation is None else {"relation_column": relation}
    columns = {"lhs": lhs, "rhs": rhs, **named}
    return [
        {"path": storage.absolute(file), "split": split, **columns, **_text_form(file, lhs, delimiter)}
        for file, split in zip(files, settings.edge_path_splits, strict=True)
    ]


def _partitioned(file: str) -> str:
    """Name the folder of a file's edges as PBG's import does, where `edge_paths` names none."""
    stem, _, suffix = file.rpartition(".")
    return f"{stem if stem and '/' not in suffix else file}_partitioned"


def _text_form(file: str, lhs: int | str, delimiter: str | None) -> dict[str, Any]:
    """Describe a file of PBG's, text without header, unless its name or a log says otherwise."""
    from etl.tables.lake.logs import log_at

    if file.endswith((".parquet", ".orc", ".json", ".jsonl", ".ndjson")) or log_at(storage.absolute(file)):
        return {}
    return {"format": "csv", "header": isinstance(lhs, str), "delimiter": delimiter or "\t"}
