"""Tables that `graphmill features` has joined vectors of the run to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import number
from graphmill.report.blocks import Block, Table
from graphmill.report.reading import mapping
from graphmill.storage.redaction import redacted

_COLUMNS = (
    "folder",
    "column",
    "rows",
    "with a vector",
    "folded in",
    "id not in the run",
    "no id",
    "finished",
)
_COUNTS = ("num_found", "num_folded_in", "num_missing", "num_without_id")


def features(notes: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """A table with a row for each column of ids."""
    rows = [
        [
            redacted(str(each.get("to"))),
            name,
            number(each.get("num_rows")),
            *(number(mapping(mapping(each, "columns"), name).get(key)) for key in _COUNTS),
            str(each.get("finished")),
        ]
        for each in notes
        for name in mapping(each, "columns")
    ]
    yield Table(
        "Tables with vectors", _COLUMNS, rows, num_text_columns=2, note="Counts of rows, by column of ids."
    )
