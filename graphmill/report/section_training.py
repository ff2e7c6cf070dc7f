"""Training: loss, MRR held out and in validation, speed, waiting and memory, by epoch and bucket."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number, size
from graphmill.report.blocks import Block, Curves, Note, Section, Series, Tile, Tiles
from graphmill.report.reading import records

Entries = Sequence[Mapping[str, Any]]


def training(entry: Mapping[str, Any]) -> Section:
    """The section of the stage's entry in run.json."""
    return Section("training", "Training", list(_blocks(entry, records(entry, "epochs"))))


def _blocks(entry: Mapping[str, Any], epochs: Entries) -> Iterator[Block]:
    yield Tiles(list(_tiles(entry, epochs)))
    if not epochs:
        yield Note("run.json tells nothing of single epochs.")
        return
    visits = [(place, each) for epoch in epochs for place, each in _visits(epoch)]
    for name, title in (("loss", "Loss"), ("mrr", "MRR of the held-out sample")):
        yield from _both(name, title, name, epochs, visits)
    yield from _curve("validation", "MRR in validation", "MRR", records(entry, "validation"), {"mrr": "all"})
    yield from _both("edges_per_s", "Speed", "edges a second", epochs, visits)
    yield from _curve(
        "waits", "Waiting for partitions and edges", "seconds", epochs, {"swap_wait_s": "waited"}
    )
    moved = {"partitions_read": "read", "partitions_written": "written"}
    yield from _curve("swaps", "Partitions swapped", "partitions", epochs, moved)
    yield from _curve("memory", "Largest process so far", "MB", epochs, {"peak_bytes": "memory"}, 1e6)


def _tiles(entry: Mapping[str, Any], epochs: Entries) -> Iterator[Tile]:
    count = entry.get("num_epochs", len(epochs))
    yield Tile("epochs", number(count), f"{number(entry.get('num_edges'))} edges in this run")
    first = f"from {number(epochs[0].get('loss'))}" if len(epochs) > 1 else ""
    yield Tile("loss", number(entry.get("loss")), first)
    held = [each["mrr"] for each in epochs if "mrr" in each]
    if held:
        yield Tile("held-out MRR", number(held[-1]), f"best {number(max(held))}")
    if rankings := records(entry, "validation"):
        best = max(rankings, key=lambda each: each["mrr"])
        note = f"after epoch {best['epoch']}, the best of {len(rankings)}"
        yield Tile("validation MRR", number(best["mrr"]), note)
    yield Tile("speed", number(entry.get("edges_per_s")), "edges a second")
    yield Tile("parameters", number(entry.get("num_parameters")), str(entry.get("device", "")))
    peaks = [each["peak_bytes"] for each in epochs if "peak_bytes" in each]
    if peaks:
        yield Tile("memory", size(max(peaks)), "largest process")
    yield Tile("time", duration(entry.get("seconds")), "with start and checkpoints")


def speed(visit: Mapping[str, Any]) -> float | None:
    """Edges a second of an epoch or a bucket."""
    if "edges_per_s" in visit:
        return float(visit["edges_per_s"])
    return visit["edges"] / visit["seconds"] if visit.get("seconds") else None


def _visits(epoch: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """The epoch's buckets, and when they were done, counted in epochs."""
    buckets = records(epoch, "buckets")
    for place, each in enumerate(buckets, start=1):
        yield epoch["epoch"] - 1 + place / len(buckets), each


def _value(visit: Mapping[str, Any], key: str) -> float | None:
    return speed(visit) if key == "edges_per_s" else visit.get(key)


def _both(
    key: str, title: str, label: str, epochs: Entries, visits: Sequence[tuple[float, Mapping[str, Any]]]
) -> Iterator[Block]:
    """A curve of the epochs, over one of the buckets where these are more."""
    by_epoch = [(each["epoch"], value) for each in epochs if (value := _value(each, key)) is not None]
    by_bucket = [(place, value, each) for place, each in visits if (value := _value(each, key)) is not None]
    series = []
    if len(by_bucket) > len(by_epoch):
        places, values, _ = zip(*by_bucket, strict=True)
        tips = [f"({each.get('lhs')}, {each.get('rhs')}): {number(value)}" for _, value, each in by_bucket]
        series.append(Series("buckets", places, values, "thin", tips))
    if by_epoch:
        places, values = zip(*by_epoch, strict=True)
        series.append(Series("epochs", places, values))
    if series:
        yield Curves(key, title, "epoch", label, series, from_zero=key != "loss", whole_x=True)


def _curve(
    name: str, title: str, label: str, epochs: Entries, keys: Mapping[str, str], unit: float = 1
) -> Iterator[Block]:
    found = {
        shown: [(each["epoch"], each[key] / unit) for each in epochs if key in each]
        for key, shown in keys.items()
    }
    series = [
        Series(shown, [place for place, _ in points], [value for _, value in points])
        for shown, points in found.items()
        if points
    ]
    if series:
        yield Curves(name, title, "epoch", label, series, from_zero=True, whole_x=True)
