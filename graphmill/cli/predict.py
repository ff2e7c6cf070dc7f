"""`graphmill predict`: answers of a finished run by raw id."""

from typing import Any

import click

from graphmill import storage
from graphmill.ask.predict import job
from graphmill.ask.predict.question import How, Question
from graphmill.cli import exit_codes, session
from graphmill.cli.option_checks import check_options
from graphmill.cli.options import result_options, task_memory_option
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.display.readable import number
from graphmill.vocab import Side

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
@click.option("--relation", metavar="NAME", help="Relation of the answers (default: the only one).")
@click.option(
    "--side",
    type=click.Choice([str(side) for side in Side]),
    default=str(Side.RHS),
    show_default=True,
    help="rhs answers (id, relation, ?), lhs answers (?, relation, id).",
)
@click.option(
    "--cosine",
    is_flag=True,
    help="Answer with the most similar vectors of a type instead; no id finds itself.",
)
@click.option(
    "--type", "id_type", metavar="TYPE", help="With --cosine: type of the ids (default: the only one)."
)
@click.option(
    "--candidates",
    "candidate_type",
    metavar="TYPE",
    help="With --cosine: type of the answers (default: that of the ids).",
)
@click.option("--k", type=click.IntRange(1), default=100, show_default=True, help="Answers for an id.")
@click.option(
    "--ids",
    metavar="FILE|all",
    help="Ids to answer for: parquet, CSV, or lines of text (default: all of the type).",
)
@click.option(
    "--pairs", metavar="FILE", help="Score these pairs instead: columns lhs, rhs and maybe relation."
)
@click.option("--exclude-known", is_flag=True, help="Leave out the edges of all splits of the run.")
@click.option(
    "--with-itself",
    is_flag=True,
    help="An id may be its own answer (default: only where a training edge of the relation is a loop).",
)
@click.option(
    "--calibrated",
    is_flag=True,
    help="Add the probability of each answer, as `graphmill evaluate` has fitted it; with --exclude-known.",
)
@click.option(
    "--exact/--approximate",
    "is_exact",
    default=None,
    help="Compare all candidates, or those in the nearest of many lists (default: what is faster).",
)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Share of the exact answers that approximate ones have at least.",
)
@click.option(
    "--index",
    metavar="FOLDER",
    help="Keep the lists of candidates here, for more questions (default: delete them at the end).",
)
@task_memory_option
@result_options
def command(
    settings: Config,
    relation: str | None,
    side: str,
    cosine: bool,
    id_type: str | None,
    candidate_type: str | None,
    k: int,
    ids: str | None,
    pairs: str | None,
    exclude_known: bool,
    with_itself: bool,
    calibrated: bool,
    is_exact: bool | None,
    recall: float,
    index: str | None,
    to: str,
    task_memory: int,
    master: str | None,
) -> None:
    """Write the best answers for ids, or scores of given pairs.

    RUN is the output folder of a run, or its run.json.
    """
    check_options(_EXCLUDED, _NEEDED)
    how: How = "auto" if is_exact is None else "exact" if is_exact else "approximate"
    question = Question(
        relation,
        Side(side),
        k,
        None if ids in (None, "all") else storage.absolute(str(ids)),
        None if pairs is None else storage.absolute(pairs),
        exclude_known,
        task_memory,
        calibrated,
        cosine,
        id_type,
        candidate_type,
        how,
        recall,
        None if index is None else storage.absolute(index),
        with_itself,
    )
    job.check(settings, question, to)
    written = [to, *filter(None, [question.index])]
    with session.result_session(settings, master, job.__name__, written) as (client, claim):
        figures = job.run(settings, question, to, client, claim)
    terminal.show_table("predict", _summary(figures))
    terminal.say(f"answers: {to}")
    if pairs is None:
        session.tell_run(settings, "predict", to, _told(figures))


_KEPT = ("relation", "id_type", "candidate_type", "k", "num_ids", "num_candidates", "checkpoint_version")
_OF_METHOD = ("method", "recall", "recall_error", "recall_ids", "num_lists", "num_probed")


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures for the run's report: of a whole question, not of its ids."""
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
    found = {name: number(figures[key]) for name, key in rows.items() if figures.get(key)}
    if figures.get("method") == "approximate":
        spread = f"{figures['recall']:.4f} ± {2 * figures['recall_error']:.4f}"
        found["recall"] = f"{spread}, of a sample of {figures['recall_ids']} ids"
        found["lists compared"] = f"{figures['num_probed']} of {figures['num_lists']}"
    return found
