"""`graphmill export`: vectors of a finished run for other systems."""

from typing import Any

import click

from graphmill.ask.export.settings import ExportOptions
from graphmill.cli import exit_codes
from graphmill.cli.options import result_options
from graphmill.cli.section_options import check_options, section_options
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
@section_options(ExportOptions)
@result_options
def command(settings: Config, to: str, master: str | None, **chosen: Any) -> None:
    """Write the vectors for other systems, and maybe smaller.

    RUN is the output folder of a run, or its run.json. The loss of smaller vectors is measured on the split
    that `graphmill evaluate` ranks.
    """
    from graphmill.ask.export import job
    from graphmill.cli.result_session import result_session, tell_run

    check_options({}, _NEEDED)
    options = ExportOptions(**chosen)
    job.check(settings, options, to)
    with result_session(settings, master, job.__name__, [to]) as (client, claim):
        figures = job.run(settings, options, to, client, claim)
    terminal.show_table("export", _summary(figures))
    terminal.say(f"vectors: {to}")
    tell_run(settings, "export", to, figures)


def _summary(figures: dict[str, Any]) -> dict[str, str]:
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
