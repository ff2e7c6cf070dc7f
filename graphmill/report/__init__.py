"""report.html: a run that people can look at, beside its run.json; and several of them side by side.

run.json, embeddings -> sections (section_*) -> blocks -> charts -> page
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphmill import storage
from graphmill.library.run import Run
from graphmill.report.blocks import Note, Page, Section
from graphmill.report.comparison import page_of_runs
from graphmill.report.page import render
from graphmill.report.reading import mapping
from graphmill.report.section_etl import etl
from graphmill.report.section_overview import overview
from graphmill.report.section_ranking import ranking
from graphmill.report.section_settings import settings
from graphmill.report.section_training import training
from graphmill.report.section_vectors import vectors
from graphmill.storage.redaction import redacted

NAME = "report.html"

log = logging.getLogger("graphmill")


def write(run: Run) -> str:
    """Write the run's report beside its run.json; its URI."""
    uri = storage.join(run.uri, NAME)
    storage.write_text(uri, render(page_of(run)))
    return uri


def write_at(record_uri: str, embedding_path: str | None) -> str:
    """Write the report of the run whose run.json is at `record_uri`; its URI."""
    return write(Run(record_uri, embedding_path))


def write_comparison(runs: Sequence[Run], uri: str) -> None:
    """Write a report that lays `runs` side by side to the file `uri`."""
    storage.write_text(uri, render(page_of_runs(runs)))


def page_of(run: Run) -> Page:
    """The report of a run."""
    record, stages = run.record, run.stages
    uri = redacted(run.uri)
    when = f"{record.get('started', 'at an unknown time')} to {record.get('finished', 'now')}"
    makers: list[tuple[str, str, bool, Callable[[], Section]]] = [
        ("overview", "Overview", True, lambda: overview(record)),
        ("etl", "Tables to buckets", _is_done(stages, "etl"), lambda: etl(stages["etl"])),
        ("training", "Training", _is_done(stages, "train"), lambda: training(stages["train"])),
        (
            "ranking",
            "Ranking of held-out edges",
            _is_done(stages, "evaluate"),
            lambda: ranking(stages["evaluate"]),
        ),
        (
            "vectors",
            "Embeddings",
            _is_done(stages, "remap") and bool(run.entity_types),
            lambda: vectors(run, stages["remap"], mapping(stages, "etl")),
        ),
        ("settings", "Settings and versions", True, lambda: settings(record)),
    ]
    sections = [_made(name, title, make) for name, title, applies, make in makers if applies]
    return Page(storage.name(uri), f"{uri} · {when}", str(record.get("status", "unknown")), sections)


def _is_done(stages: Mapping[str, Any], name: str) -> bool:
    return mapping(stages, name).get("status") == "done"


def _made(name: str, title: str, make: Callable[[], Section]) -> Section:
    """The section; or why there is none, so that the others are there all the same."""
    try:
        return make()
    except Exception as error:  # run.json may come from anywhere, and a report is never worth a failure
        log.warning("report: the part %s could not be made: %s: %s", title, type(error).__name__, error)
        reason = f"{type(error).__name__}: {error}"
        return Section(name, title, [Note("This part could not be made.", "warning", reason)])
