"""Main figures of each stage, for the table at the end of a command: label and text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphmill.display import readable
from graphmill.display.readable import duration, number

Entry = Mapping[str, Any]


def summary(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the main figures of several stages, from their entries in run.json."""
    rows: dict[str, str] = {}
    for name, entry in entries.items():
        if "reason" in entry:
            rows[name] = "left out"
        else:
            skipped = entry.get("skipped")
            rows[name if skipped else f"{name}, time"] = (
                f"skipped, {skipped}" if skipped else duration(entry.get("seconds"))
            )
            rows.update(_OF_STAGE[name](entry))
    return rows


def etl(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of etl."""
    yield "rows in", number(entry.get("num_rows"))
    if entry.get("num_rows_quarantined"):
        yield "quarantined rows", number(entry["num_rows_quarantined"])
    for name, count in list(entry.get("unknown_relations", {}).items())[:3]:
        yield f"unknown relation {readable.shortened(name)!r}", number(count)
    for split, count in entry.get("num_edges", {}).items():
        yield f"edges, {split}", number(count)
    for name, counts in entry.get("num_entities", {}).items():
        yield f"entities, {name}", number(sum(counts))
    yield "relations", number(entry.get("num_relations"))


def train(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of train."""
    if members := entry.get("members"):
        yield "models", number(len(members))
    yield "epochs", number(entry.get("num_epochs"))
    yield "loss", number(entry.get("loss"))
    if entry.get("edges_per_s") and "skipped" not in entry:
        yield "edges per second", number(entry["edges_per_s"])


def evaluate(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of evaluate."""
    intervals = entry.get("intervals", {})
    for name, value in entry.get("metrics", {}).items():
        if name in intervals:
            yield (
                name,
                f"{number(value)} (95 %: {number(intervals[name][0])} to {number(intervals[name][1])})",
            )
        elif not name.endswith("_pessimistic") and name not in ("of_edges", "sampled"):
            yield name, number(value)
    if measured := entry.get("calibration", {}).get("top_10"):
        yield "calibration error, 10 best", number(measured.get("ece"))
    for name, metrics in entry.get("baselines", {}).items():
        yield f"mrr, {name.replace('_', ' ')}", number(metrics.get("mrr"))


def remap(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of remap."""
    for name, kind in entry.get("types", {}).items():
        yield f"embeddings, {name}", f"{number(kind.get('num_rows'))} of length {kind.get('dimension')}"


def drift(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of drift."""
    for name, kind in entry.get("types", {}).items():
        if "p50" in kind:
            yield (
                f"cosine since the run before, {name}",
                f"{number(kind['p50'])}, 10th percentile {number(kind['p10'])}",
            )


_OF_STAGE: Mapping[str, Callable[[Entry], Iterator[tuple[str, str]]]] = {
    "etl": etl,
    "train": train,
    "evaluate": evaluate,
    "remap": remap,
    "drift": drift,
}
