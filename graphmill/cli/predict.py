"""`graphmill predict`: answers of a finished run by raw id."""

from typing import Any

import click

from graphmill.ask.predict.settings import PredictOptions
from graphmill.cli import exit_codes
from graphmill.cli.options import result_options
from graphmill.cli.section_options import check_options, section_options
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.display.readable import number

_OF_ALL_CANDIDATES = ("--k", "--exact", "--approximate", "--recall", "--index")
_EXCLUDED = {
    "--pairs": ("--ids", "--exclude-known", "--with-itself", "--calibrated", *_OF_ALL_CANDIDATES),
    "--cosine": ("--relation", "--side", "--pairs", "--exclude-known", "--with-itself", "--calibrated"),
    "--calibrated": ("--with-itself",),
    "--exact": ("--recall", "--index"),
}
_NEEDED = {"--calibrated": "--exclude-known", "--type": "--cosine", "--candidates": "--cosine"}


@click.command(
    "predict",
    context_settings=exit_codes.CONTEXT,
    epilog="Example: graphmill predict output/shop --relation bought --to answers",
)
@click.argument("run")
@section_options(PredictOptions)
@result_options
def command(settings: Config, to: str, master: str | None, **options: Any) -> None:
    """Write the best answers for ids, or scores of given pairs.

    RUN is the output folder of a run, or its run.json.
    """
    from graphmill.ask.predict import job
    from graphmill.cli.result_session import result_session, tell_run

    check_options(_EXCLUDED, _NEEDED)
    question = PredictOptions(**options)
    job.check(settings, question, to)
    written = [to, *filter(None, [question.index])]
    with result_session(settings, master, job.__name__, written) as (client, claim):
        figures = job.run(settings, question, to, client, claim)
    terminal.show_table("predict", _summary(figures))
    terminal.say(f"answers: {to}")
    if question.pairs is None:
        tell_run(settings, "predict", to, _told(figures))


_KEPT = ("relation", "id_type", "candidate_type", "k", "num_ids", "num_candidates", "checkpoint_version")
_OF_METHOD = ("method", "recall", "recall_error", "recall_ids", "num_lists", "num_probed")


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: figures[key] for key in (*_KEPT, *_OF_METHOD) if key in figures}


def _summary(figures: dict[str, Any]) -> dict[str, str]:
    rows = {
        "ids": "num_ids",
        "unknown ids": "num_unknown",
        "candidates": "num_candidates",
        "answers": "num_answers",
        "known edges left out": "num_known_left_out",
        "pairs": "num_pairs",
        "pairs without score": "num_without_score",
    }
    shown = {name: number(figures[key]) for name, key in rows.items() if figures.get(key)}
    if figures.get("method") == "approximate":
        spread = f"{figures['recall']:.4f} ± {2 * figures['recall_error']:.4f}"
        shown["recall"] = f"{spread}, of a sample of {figures['recall_ids']} ids"
        shown["lists compared"] = f"{figures['num_probed']} of {figures['num_lists']}"
    return shown
