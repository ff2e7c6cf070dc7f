"""What a command prints at its end: the figures of its stages that one wants to see first."""

from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.display.readable import duration, number

Entry = Mapping[str, Any]


def summary(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Label and value of each figure, of the stages' entries in run.json."""
    tellers = {"etl": _etl, "train": _train, "evaluate": _evaluate, "remap": _remap}
    rows: dict[str, str] = {}
    for name, entry in entries.items():
        if "reason" in entry:
            rows[name] = "left out"
            continue
        rows[f"{name}, time"] = duration(entry.get("seconds"))
        rows.update(tellers[name](entry) if name in tellers else ())
    return rows


def _etl(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "rows in", number(entry.get("num_rows"))
    if entry.get("num_rows_quarantined"):
        yield "rows set aside", number(entry["num_rows_quarantined"])
    for split, count in entry.get("num_edges", {}).items():
        yield f"edges, {split}", number(count)
    for name, counts in entry.get("num_entities", {}).items():
        yield f"entities, {name}", number(sum(counts))
    yield "relations", number(entry.get("num_relations"))


def _train(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "epochs", number(entry.get("num_epochs"))
    yield "loss", number(entry.get("loss"))
    if entry.get("edges_per_s"):
        yield "edges a second", number(entry["edges_per_s"])


def _evaluate(entry: Entry) -> Iterator[tuple[str, str]]:
    for name, value in entry.get("metrics", {}).items():
        if not name.endswith("_pessimistic"):
            yield name, number(value)


def _remap(entry: Entry) -> Iterator[tuple[str, str]]:
    for name, kind in entry.get("types", {}).items():
        yield f"embeddings, {name}", f"{number(kind.get('num_rows'))} of length {kind.get('dimension')}"
