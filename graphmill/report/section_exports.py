"""Exports of the run: what was exported, its size, and what smaller vectors cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import number, size
from graphmill.report.blocks import Block, Table
from graphmill.report.reading import mapping, total
from graphmill.storage.redaction import redacted

_COLUMNS = ["folder", "format", "precision", "types", "vectors", "size", "of float32", "MRR", "loss of MRR"]
_SIZES = ("file_bytes", "table_bytes", "float32_bytes", "num_rows")


def exports(notes: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """A table of the notes that `graphmill.run.results` keeps."""
    rows = [_row(each) for each in notes]
    note = (
        "Size: ids, vectors, and tables that decode them. MRR: of the stage evaluate with decoded vectors. "
        "Its loss: the MRR of exact vectors less that. Good: a loss small beside the interval of the MRR."
    )
    yield Table("Exports", _COLUMNS, rows, note=note)


def _row(note: Mapping[str, Any]) -> list[str]:
    types, loss = mapping(note, "types"), mapping(note, "loss")
    sums = {key: sum(total(mapping(types, name).get(key, 0)) for name in types) for key in _SIZES}
    num_bytes = sums["file_bytes"] + sums["table_bytes"]
    share = f"{100 * num_bytes / sums['float32_bytes']:.1f} %" if sums["float32_bytes"] else "-"
    mrr = mapping(loss, "decoded").get("mrr")
    return [
        redacted(str(note.get("to"))),
        str(note.get("format")),
        str(note.get("precision")),
        ", ".join(types),
        number(sums["num_rows"]),
        size(num_bytes),
        share,
        number(mrr) if mrr is not None else "-",
        f"{loss['mrr_loss']:.4f}" if "mrr_loss" in loss else str(loss.get("not_measured", "none")),
    ]
