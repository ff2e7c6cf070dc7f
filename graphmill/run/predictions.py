"""Answers that were written from a run: how many, exact or with which recall.

predictions.json    beside run.json: a list, the last written first
    to, written                     folder of the answers, and when it was finished
    relation, id_type, candidate_type, k, num_ids, num_candidates, checkpoint_version
    method                          exact, approximate
    recall, recall_error, recall_ids    where approximate: of a sample of ids
    num_lists, num_probed           lists of candidates, and those that an id is compared with
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError

NAME = "predictions.json"
MOST = 20
_KEPT = ("relation", "id_type", "candidate_type", "k", "num_ids", "num_candidates", "checkpoint_version")
_OF_METHOD = ("method", "recall", "recall_error", "recall_ids", "num_lists", "num_probed")


def read(folder: str) -> list[dict[str, Any]]:
    """Entries of the run in a folder; none without a file, and none of a damaged one."""
    uri = storage.join(folder, NAME)
    if not storage.exists(uri):
        return []
    try:
        content = storage.read_json(uri, list)
    except FormatError:
        return []
    return [each for each in content if isinstance(each, dict)]


def add(folder: str, to: str, figures: Mapping[str, Any]) -> None:
    """Put the figures of answers first; they replace those of earlier answers in the same folder."""
    kept = {key: figures[key] for key in (*_KEPT, *_OF_METHOD) if key in figures}
    entry = {"to": to, "written": datetime.now(UTC).isoformat(timespec="seconds"), **kept}
    others = [each for each in read(folder) if each.get("to") != to]
    storage.write_text(storage.join(folder, NAME), json.dumps([entry, *others][:MOST], indent=1) + "\n")
