"""`graphmill export`: vectors of a finished run for other systems."""

from typing import Any

import click

from graphmill.ask.export import job
from graphmill.ask.export.codecs import PRECISIONS
from graphmill.ask.export.formats import FORMATS
from graphmill.cli import exit_codes
from graphmill.cli.option_checks import check_options
from graphmill.cli.options import result_options
from graphmill.cli.session import result_session, tell_run
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.display.readable import number, size

_NEEDED = {
    "--pq-bytes": "--precision pq",
    "--limit": "--format tensorboard-projector",
    "--escape-ids": "--format word2vec",
}


@click.command(
    "export",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill export output/shop --precision int8 --to vectors",
)
@click.argument("run")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="float32",
    show_default=True,
    help="float16: half the bytes; int8: a quarter; pq: a sixteenth (product quantisation).",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(FORMATS)),
    default="parquet",
    show_default=True,
    help="Tables (parquet, npy, arrow), an index of faiss, or text.",
)
@click.option("--types", metavar="NAME,...", default="", help="Entity types (default: all).")
@click.option(
    "--pq-bytes",
    type=click.IntRange(3),
    help="Bytes of a vector with --precision pq (default: D / 4, a sixteenth of float32).",
)
@click.option("--no-loss", is_flag=True, help="Do not measure how much worse the smaller vectors rank.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Ids of a type for tensorboard-projector, those with most edges first.",
)
@click.option("--escape-ids", is_flag=True, help="Write white space in ids as %20, for word2vec.")
@result_options
def command(
    settings: Config,
    precision: Any,
    file_format: str,
    types: str,
    to: str,
    pq_bytes: int | None,
    no_loss: bool,
    limit: int,
    escape_ids: bool,
    master: str | None,
) -> None:
    """Write the vectors for other systems, and maybe smaller.

    RUN is the output folder of a run, or its run.json. The loss of smaller vectors is measured on the split
    that `graphmill evaluate` ranks.
    """
    check_options({}, _NEEDED)
    names = tuple(dict.fromkeys(each.strip() for each in types.split(",") if each.strip()))
    wish = job.Wish(precision, file_format, names, pq_bytes, limit, escape_ids, not no_loss)
    job.check(settings, wish, to)
    with result_session(settings, master, job.__name__, [to]) as (client, claim):
        figures = job.run(settings, wish, to, client, claim)
    terminal.show_table("export", _summary(figures))
    terminal.say(f"vectors: {to}")
    tell_run(settings, "export", to, figures)


def _summary(figures: dict[str, Any]) -> dict[str, str]:
    types = figures["types"].values()
    rows = {"vectors": number(sum(each["num_rows"] for each in types))}
    for key, label in (("file_bytes", "files"), ("table_bytes", "tables"), ("float32_bytes", "as float32")):
        rows[label] = size(sum(each[key] for each in types))
    found = figures.get("loss", {})
    if "mrr_loss" in found:
        rows["MRR"] = f"{found['decoded']['mrr']:.4f}, exact vectors {found['exact']['mrr']:.4f}"
    elif found:
        rows["loss"] = f"not measured: {found['not_measured']}"
    return rows
