"""Notes of what commands have made of a run, beside its run.json; report.html shows them.

    results/{kind}-{digest of the folder's URI}.json    where the result is, and its figures

A kind is the name of the command: predict, export, features. These are no stages, and do not lock the run. So
each result has a file of its own.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError, StorageError

FOLDER = "results"


def note(record_uri: str, kind: str, to: str, figures: Mapping[str, Any]) -> None:
    """Write the note of a result in the folder `to`; it replaces an earlier one of this folder."""
    digest = hashlib.sha256(to.encode()).hexdigest()[:12]
    uri = storage.join(storage.parent(record_uri), FOLDER, f"{kind}-{digest}.json")
    content = {"to": to, "finished": datetime.now(UTC).isoformat(timespec="seconds"), **figures}
    storage.write_json(uri, content, indent=1)


def notes_of(run_uri: str, kind: str) -> list[dict[str, Any]]:
    """Read the notes of a run, the oldest first; leaves out what is no note: a report never fails for it."""
    notes = []
    with suppress(StorageError):  # the folder is a file
        for entry in storage.list_dir(storage.join(run_uri, FOLDER)):
            if re.fullmatch(rf"{kind}-.+\.json", storage.name(entry.uri)):
                with suppress(FormatError, StorageError):
                    notes.append(storage.read_json(entry.uri))
    return sorted(notes, key=lambda noted: (str(noted.get("finished")), str(noted.get("to"))))
