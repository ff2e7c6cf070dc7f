"""report.html: a page about one run, beside its run.json, or about several runs side by side.

run.json, embeddings -> overview, stages, results, vectors -> charts -> page
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from graphmill import storage
from graphmill.errors import FormatError, GraphMillError
from graphmill.library.run import Run
from graphmill.report.maps import Labels
from graphmill.report.overview import overview, page_of_runs, settings
from graphmill.report.page import Block, Note, Page, PageSection, render
from graphmill.report.results import answers, calibration, exports, features, ranking
from graphmill.report.stages import etl, training
from graphmill.report.vectors import vectors
from graphmill.run.reading import mapping
from graphmill.run.record import notes_of, run_of
from graphmill.storage.redaction import redacted

NAME = "report.html"

log = logging.getLogger("graphmill")


def write(run: Run, labels: Labels | None = None, before: Run | None = None, uri: str | None = None) -> str:
    """Write the run's report, and return the report's URI.

    Args:
        run: the run.
        labels: colours of the map; without them, each entity type has a colour.
        before: a run with earlier embeddings, to tell how far vectors have moved.
        uri: where to; None: beside its run.json.
    """
    uri = uri or storage.join(run.uri, NAME)
    log.info("report: drawing the charts, and the map of the vectors")
    _write(uri, page_of(run, labels, before))
    return uri


def write_at(record_uri: str, embedding_path: str | None, init_path: str | None = None) -> str:
    """Write the report of the run whose run.json is at `record_uri`, and return the report's URI.

    `init_path` is the checkpoint that training started from: the run before is its run, if it is still there.
    """
    before = None
    if init_path is not None:
        with suppress(GraphMillError):
            before = Run(run_of(init_path))
    return write(Run(record_uri, embedding_path), before=before)


def write_comparison(runs: Sequence[Run], uri: str) -> None:
    """Write a report that shows `runs` side by side to the file `uri`."""
    _write(uri, page_of_runs(runs))


def _write(uri: str, page: Page) -> None:
    """Write the page in the place of an earlier one; refuse to replace another file."""
    there = storage.read_bytes(uri) if storage.exists(uri) else b""
    if there and b" - GraphMill</title>" not in there:
        raise FormatError(f"{uri}: expected a report, found another's file; move it away")
    storage.write_text(uri, render(page))


def page_of(run: Run, labels: Labels | None = None, before: Run | None = None) -> Page:
    """Make the page of a run; a section about a stage needs the stage to be done."""
    record = run.record
    stages = {name: mapping(run.stages, name) for name in run.stages}
    done = {name: entry for name, entry in stages.items() if entry.get("status") == "done"}
    sections = [_section("overview", "Overview", overview(record))]
    if "etl" in done:
        sections.append(_section("etl", "Tables to buckets", etl(done["etl"])))
    if "train" in done:
        sections.append(_section("training", "Training", training(done["train"])))
    if "evaluate" in done:
        ranked = ranking(done["evaluate"], run.before)
        sections.append(_section("ranking", "Ranking of held-out edges", ranked))
    if probabilities := mapping(done.get("evaluate", {}), "calibration"):
        sections.append(_section("probabilities", "Probabilities of answers", calibration(probabilities)))
    sections.append(_section("answers", "Answers by raw id", answers(notes_of(run.uri, "predict"))))
    if "remap" in done and run.entity_types:
        blocks = vectors(run, done["remap"], stages.get("etl", {}), labels, before, stages.get("drift"))
        sections.append(_section("vectors", "Embeddings", blocks, is_asked_for=labels is not None))
    sections.append(_section("exports", "Exports", exports(notes_of(run.uri, "export"))))
    sections.append(_section("features", "Tables with vectors", features(notes_of(run.uri, "features"))))
    sections.append(_section("settings", "Settings and versions", settings(record)))
    uri = redacted(run.uri)
    when = f"{record.get('started', 'at an unknown time')} to {record.get('finished', 'now')}"
    return Page(storage.name(uri), f"{uri} · {when}", str(record.get("status", "unknown")), sections)


def _section(name: str, title: str, blocks: Iterable[Block], *, is_asked_for: bool = False) -> PageSection:
    """A section; errors end it with a note. With `is_asked_for`, the user's own errors are raised."""
    made: list[Block] = []
    try:
        made.extend(blocks)
    except Exception as error:  # run.json may hold anything, and a report never fails a run
        if is_asked_for and isinstance(error, GraphMillError):
            raise
        log.warning("report: the part %s could not be made: %s: %s", title, type(error).__name__, error)
        reason = f"{type(error).__name__}: {error}"
        made.append(Note("This part could not be made.", "warning", reason))
    return PageSection(name, title, made)
