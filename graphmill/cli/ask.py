"""Commands that make something of a finished run: `graphmill predict`, `export`, `features` and `fold-in`."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from graphmill import storage
from graphmill.ask.export.settings import ExportOptions
from graphmill.ask.features.settings import FeaturesOptions
from graphmill.ask.fold_in.settings import FoldInOptions
from graphmill.ask.predict.settings import PredictOptions
from graphmill.cli.options import result_options
from graphmill.cli.section_options import check_options, section_options
from graphmill.config import Config, validated
from graphmill.config.sections.etl import FilesConfig, Table, TableConfig
from graphmill.display import terminal
from graphmill.display.readable import number, size
from graphmill.errors import GraphMillError
from graphmill.run.lock import held
from graphmill.run.reading import OF_FEATURES
from graphmill.run.record import note_result
from graphmill.storage.redaction import redacted

_OF_FILES = ("format", "delimiter", "header", "encoding")
_OF_EDGES = ("lhs", "rhs", "relation", "relation_column", "weight")
_OF_ALL_CANDIDATES = ("--k", "--exact", "--approximate", "--recall", "--index")
_EXCLUDED_BY_PREDICT = {
    "--pairs": ("--ids", "--exclude-known", "--with-itself", "--calibrated", *_OF_ALL_CANDIDATES),
    "--cosine": ("--relation", "--side", "--pairs", "--exclude-known", "--with-itself", "--calibrated"),
    "--calibrated": ("--with-itself",),
    "--exact": ("--recall", "--index"),
}
_NEEDED_BY_PREDICT = {"--calibrated": "--exclude-known", "--type": "--cosine", "--candidates": "--cosine"}
# Figures of predict that report.html shows.
_TOLD = ("relation", "id_type", "candidate_type", "k", "num_ids", "num_candidates", "checkpoint_version")
_OF_METHOD = ("method", "recall", "recall_error", "recall_ids", "num_lists", "num_probed")

log = logging.getLogger("graphmill")


def _run(
    job: Any,
    settings: Config,
    master: str | None,
    to: str,
    *request: Any,
    also: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Run a job with the folders locked that it writes (`to`, `also`), on a cluster, showing progress."""
    from graphmill import cluster
    from graphmill.display import progress
    from graphmill.run.fingerprints import are_small

    of_run = [settings.entity_path, settings.checkpoint_path, *settings.edge_paths]
    with (
        held(whole=[to, *filter(None, [also])]) as claim,
        progress.displayed(),
        cluster.connect(master, settings.cluster, [job.__name__], is_small=are_small(of_run)) as client,
    ):
        figures: dict[str, Any] = job.run(settings, *request, to, client, claim, **more)
    return figures


def _tell_run(settings: Config, command: str, to: str, figures: Mapping[str, Any]) -> None:
    """Note a result that a command has made of a run, for the run's next report; an error is only logged."""
    uri = settings.record_uri(settings.checkpoint_path)
    try:
        note_result(uri, command, to, figures)
    except GraphMillError as error:  # such as that of a run of others
        log.warning("%s: report.html of the run will not name it: %s", command, error)
    else:
        log.info("report: `graphmill report %s` shows this result too", redacted(storage.parent(uri)))


@click.command("predict", epilog="Example: graphmill predict output/shop --relation bought --to answers")
@click.argument("run")
@section_options(PredictOptions)
@result_options
def predict(settings: Config, to: str, master: str | None, **options: Any) -> None:
    """Write the best answers for ids, or scores of given pairs.

    RUN is the output folder of a run, or its run.json.
    """
    from graphmill.ask.predict import job

    check_options(_EXCLUDED_BY_PREDICT, _NEEDED_BY_PREDICT)
    question = validated(PredictOptions, options)
    job.check(settings, question, to)
    figures = _run(job, settings, master, to, question, also=question.index)
    terminal.show_table("predict", _predict_summary(figures))
    terminal.say(f"answers: {to}")
    if question.pairs is None:
        told = {key: figures[key] for key in (*_TOLD, *_OF_METHOD) if key in figures}
        _tell_run(settings, "predict", to, told)


def _predict_summary(figures: dict[str, Any]) -> dict[str, str]:
    rows = {
        "ids": "num_ids",
        "unknown ids": "num_unknown",
        "candidates": "num_candidates",
        "answers": "num_answers",
        "known edges left out": "num_known_left_out",
        "pairs": "num_pairs",
        "pairs without score": "num_without_score",
    }
    shown = _counts(figures, rows)
    if figures.get("method") == "approximate":
        spread = f"{figures['recall']:.4f} ± {2 * figures['recall_error']:.4f}"
        shown["recall"] = f"{spread}, of a sample of {figures['recall_ids']} ids"
        shown["lists compared"] = f"{figures['num_probed']} of {figures['num_lists']}"
    return shown


_NEEDED_BY_EXPORT = {
    "--pq-bytes": "--precision pq",
    "--limit": "--format tensorboard-projector",
    "--escape-ids": "--format word2vec",
}


@click.command("export", epilog="Example: graphmill export output/shop --precision int8 --to vectors")
@click.argument("run")
@section_options(ExportOptions)
@result_options
def export(settings: Config, to: str, master: str | None, **chosen: Any) -> None:
    """Write the vectors for other systems, and maybe smaller.

    RUN is the output folder of a run, or its run.json. The loss of smaller vectors is measured on the split
    that `graphmill evaluate` ranks.
    """
    from graphmill.ask.export import job

    check_options({}, _NEEDED_BY_EXPORT)
    options = validated(ExportOptions, chosen)
    job.check(settings, options, to)
    figures = _run(job, settings, master, to, options)
    terminal.show_table("export", _export_summary(figures))
    terminal.say(f"vectors: {to}")
    _tell_run(settings, "export", to, figures)


def _export_summary(figures: dict[str, Any]) -> dict[str, str]:
    types = figures["types"].values()
    rows = {"vectors": number(sum(kind["num_rows"] for kind in types))}
    for key, label in (("file_bytes", "files"), ("table_bytes", "tables"), ("float32_bytes", "as float32")):
        rows[label] = size(sum(kind[key] for kind in types))
    loss = figures.get("loss", {})
    if "mrr_loss" in loss:
        rows["MRR"] = f"{loss['decoded']['mrr']:.4f}, exact vectors {loss['exact']['mrr']:.4f}"
    elif loss:
        rows["loss"] = f"not measured: {loss['not_measured']}"
    return rows


@click.command(
    "features",
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
@section_options(FilesConfig, overriding=_OF_FILES)
@result_options
def features(
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

    check_options({"--components": ["--similar-to"]}, {})
    of_table = {key: options.pop(key) for key in _OF_FILES}
    given = {key: value for key, value in of_table.items() if value is not None}
    request = FeaturesOptions(columns=_typed(columns, types, list(settings.entities)), **options)
    job.check(settings, request, to)
    fold_ids_in = _fold_in(settings, request)
    read = whole_table(settings, table, given)
    figures = _run(job, settings, master, to, request, read, fold_ids_in=fold_ids_in)
    terminal.show_table("features", _features_summary(figures))
    terminal.say(f"table: {to}")
    _tell_run(settings, "features", to, figures)


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
    tables = [edge_table(settings, edges, {}, "--fold-in")]
    read = partial(write_pieces, settings, tables, relations_of(settings))
    asked = fold_in_job.Request({"edges": edges}, edges)
    return partial(fold_in_job.run, settings, asked, read)


def _features_summary(figures: dict[str, Any]) -> dict[str, str]:
    shown = {"rows": number(figures["num_rows"])}
    for column, counts in figures["columns"].items():
        shown |= {
            f"{column}: {text}": number(counts[key]) for key, text in OF_FEATURES.items() if counts[key]
        }
    return shown | {"seconds": f"{figures['seconds']:.1f}"}


@click.command(
    "fold-in", epilog="Example: graphmill fold-in output/shop --edges today.parquet --to new-vectors"
)
@click.argument("run")
@click.option(
    "--edges", multiple=True, required=True, metavar="FILE", help="Table of edges of new ids; repeatable."
)
@click.option(
    "--ids",
    multiple=True,
    metavar="TYPE=FILE",
    help="More new ids, which may have no edges: a table with the column `id`; repeatable.",
)
@section_options(TableConfig, overriding=(*_OF_FILES, *_OF_EDGES))
@click.option("--no-weight", is_flag=True, help="All edges weigh 1, though the run's tables have weights.")
@section_options(FoldInOptions, without=["num_known_edges"])
@result_options
def fold_in(
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

    check_options({"--no-weight": ["--weight"]}, {})
    chosen = {key: others.pop(key) for key in FoldInOptions.model_fields if key in others}
    options = validated(FoldInOptions, chosen)
    given = {key: value for key, value in others.items() if value is not None}
    given |= {"weight": None} if no_weight else {}
    tables: list[Table] = [edge_table(settings, edges, given, "--edges")]
    paths = list(edges)
    for text in ids:
        entity_type, equals, path = text.partition("=")
        paths.append(path)
        if not equals or entity_type not in settings.entities:
            raise click.UsageError(f"--ids {text}: expected TYPE=FILE, types: {', '.join(settings.entities)}")
        tables.append(id_table(settings, path, entity_type))
    uris = list(map(storage.absolute, paths))
    request = job.Request({"edges": list(edges), "ids": list(ids)}, uris, options)
    job.check(settings, request, to)
    read = partial(write_pieces, settings, tables, relations_of(settings))
    figures = _run(job, settings, master, to, request, read)
    terminal.show_table("fold-in", _fold_in_summary(figures))
    terminal.say(f"vectors: {to}")


def _fold_in_summary(figures: dict[str, Any]) -> dict[str, str]:
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
    return _counts(figures, rows) | {"seconds": f"{figures['seconds']:.1f}"}


def _counts(figures: Mapping[str, Any], rows: Mapping[str, str]) -> dict[str, str]:
    """Rows of a table, by label, of those figures that are not 0."""
    return {label: number(figures[key]) for label, key in rows.items() if figures.get(key)}
