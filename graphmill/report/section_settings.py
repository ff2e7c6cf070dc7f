"""Settings and versions: what is needed to repeat the run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.display.readable import duration, shortened
from graphmill.report.blocks import Block, Table
from graphmill.report.reading import flattened, mapping

SHOWN_CHARS = 300
AGAIN = "Good: the same versions as in the run that you compare with; other versions may give other figures."
STAGES = "Good: all are done. What failed or is still running has no results that count."
SETTINGS = "Good: what you meant. Keys that you have not set have their default here."


def settings(record: Mapping[str, Any]) -> Iterator[Block]:
    """Tables of versions, stages and settings."""
    run = {
        "command": " ".join(map(str, record.get("command", []))),
        **{key: record.get(key) for key in ("started", "finished", "python")},
        **mapping(record, "versions"),
    }
    yield Table("Run", ["what", "value"], [[name, str(value)] for name, value in run.items()], 2, note=AGAIN)
    stages = mapping(record, "stages")
    rows = [
        [name, str(each.get("status", "-")), str(each.get("started", "-")), duration(each.get("seconds"))]
        for name, each in stages.items()
    ]
    yield Table("Stages", ["stage", "status", "started", "time"], rows, 3, note=STAGES)
    config = [[key, shown(value)] for key, value in flattened(mapping(record, "config")).items()]
    yield Table("Settings", ["key", "value"], config, 2, folded=True, note=SETTINGS)


def shown(value: Any) -> str:
    """A setting as in YAML; a very long setting is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, SHOWN_CHARS)
