"""Answers for ids that `graphmill predict` has written from the run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import number
from graphmill.report.blocks import Block, Table
from graphmill.storage.redaction import redacted

_COLUMNS = ("answers", "relation", "method", "ids", "candidates", "k", "recall", "lists compared", "finished")


def answers(entries: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Blocks about the notes that `graphmill.run.results` keeps."""
    yield Table(
        "Answers of graphmill predict",
        _COLUMNS,
        [_row(each) for each in entries],
        num_text_columns=3,
        note="The recall is the share of the exact answers that were found, for a sample of ids, with two "
        "standard errors. Good: 1, or what --recall asks for.",
    )


def _text(value: Any, factor: int) -> str:
    return f"{factor * value:.4f}" if isinstance(value, float) else "-"


def _row(entry: Mapping[str, Any]) -> list[str]:
    recall, lists = "1, exact", "all candidates"
    if entry.get("method") == "approximate":
        recall = f"{_text(entry.get('recall'), 1)} ± {_text(entry.get('recall_error'), 2)}"
        lists = f"{entry.get('num_probed')} of {entry.get('num_lists')}"
    counts = [number(entry.get(key)) for key in ("num_ids", "num_candidates", "k")]
    to, relation, method = (str(entry.get(key, "")) for key in ("to", "relation", "method"))
    return [redacted(to), relation, method, *counts, recall, lists, str(entry.get("finished", ""))]
