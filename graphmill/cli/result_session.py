"""A command that makes a result of a finished run: its locks, its cluster, and a note for the report."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import GraphMillError
from graphmill.run import lock, results
from graphmill.run.inputs import are_small
from graphmill.storage.redaction import redacted

log = logging.getLogger("graphmill")


@contextmanager
def result_session(
    settings: Config, master: str | None, job: str, written: Sequence[str]
) -> Iterator[tuple[Client, lock.Claim]]:
    """Lock the folders to write, start a cluster and show progress."""
    options = settings.cluster
    of_run = [settings.entity_path, settings.checkpoint_path, *settings.edge_paths]
    with (
        lock.held(whole=written) as claim,
        progress.displayed(),
        cluster.connect(master, options, [job], is_small=are_small(of_run)) as client,
    ):
        yield client, claim


def tell_run(settings: Config, command: str, to: str, figures: Mapping[str, Any]) -> None:
    """Note a result that a command has made of a run, for the run's next report; an error is only logged."""
    uri = settings.record_uri(settings.checkpoint_path)
    try:
        results.note(uri, command, to, figures)
    except GraphMillError as error:  # such as that of a run of others
        log.warning("%s: report.html of the run will not name it: %s", command, error)
    else:
        log.info("report: `graphmill report %s` shows this result too", redacted(storage.parent(uri)))
