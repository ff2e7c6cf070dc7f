"""Settings, versions, inputs: what it takes to run the same again."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.display.readable import duration
from graphmill.report.blocks import Block, Section, Table
from graphmill.report.reading import flattened, mapping

SHOWN_CHARS = 300


def settings(record: Mapping[str, Any]) -> Section:
    """The last section."""
    return Section("settings", "Settings and versions", list(_blocks(record)))


def _blocks(record: Mapping[str, Any]) -> Iterator[Block]:
    run = {
        "command": " ".join(map(str, record.get("command", []))),
        "started": record.get("started"),
        "finished": record.get("finished"),
        "python": record.get("python"),
    }
    versions = [[name, str(value)] for name, value in {**run, **mapping(record, "versions")}.items()]
    yield Table("Run", ["what", "value"], versions, 2)
    stages = mapping(record, "stages")
    rows = [
        [name, str(each.get("status", "-")), str(each.get("started", "-")), duration(each.get("seconds"))]
        for name, each in stages.items()
    ]
    yield Table("Stages", ["stage", "status", "started", "time"], rows, 3)
    config = flattened(mapping(record, "config"))
    yield Table(
        "Settings", ["key", "value"], [[key, shown(value)] for key, value in config.items()], 2, folded=True
    )


def shown(value: Any) -> str:
    """A setting as YAML would have it, cut where it is very long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
