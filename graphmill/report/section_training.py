"""Training: loss, held-out MRR, validation MRR, speed, waiting time and memory, by epoch and bucket."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number, size
from graphmill.report.blocks import Block, Curves, Note, Series, Tile, Tiles
from graphmill.report.reading import records

Entry = Mapping[str, Any]
Value = Callable[[Entry], float | None]


def training(entry: Entry) -> Iterator[Block]:
    """Blocks about the stage's entry in run.json."""
    epochs = records(entry, "epochs")
    yield Tiles(list(_tiles(entry, epochs)))
    if not epochs:
        yield Note("run.json has no figures of single epochs.")
        return
    validation = records(entry, "validation")
    yield from _with_buckets("loss", "Loss", "loss", epochs, value_of("loss"))
    yield from _with_buckets("mrr", "MRR of the held-out sample", "mrr", epochs, value_of("mrr"))
    yield from epoch_chart(
        "validation", "MRR in validation", "MRR", epoch_series("all", validation, value_of("mrr"))
    )
    yield from _with_buckets("edges_per_s", "Speed", "edges per second", epochs, speed)
    waited = epoch_series("waited", epochs, value_of("swap_wait_s"))
    yield from epoch_chart("waits", "Waiting for partitions and edges", "seconds", waited)
    read = epoch_series("read", epochs, value_of("partitions_read"))
    written = epoch_series("written", epochs, value_of("partitions_written"))
    yield from epoch_chart("swaps", "Partitions swapped", "partitions", read + written)
    memory = epoch_series("memory", epochs, _megabytes)
    yield from epoch_chart("memory", "Largest process so far", "MB", memory)


def _tiles(entry: Entry, epochs: Sequence[Entry]) -> Iterator[Tile]:
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
    yield Tile("speed", number(entry.get("edges_per_s")), "edges per second")
    yield Tile("parameters", number(entry.get("num_parameters")), str(entry.get("device", "")))
    peaks = [each["peak_bytes"] for each in epochs if "peak_bytes" in each]
    if peaks:
        yield Tile("memory", size(max(peaks)), "largest process")
    yield Tile("time", duration(entry.get("seconds")), "with start and checkpoints")


def speed(visit: Entry) -> float | None:
    """Edges per second of an epoch or a bucket."""
    if "edges_per_s" in visit:
        return float(visit["edges_per_s"])
    return visit["edges"] / visit["seconds"] if visit.get("seconds") else None


def epoch_series(name: str, epochs: Sequence[Entry], value: Value) -> list[Series]:
    """The values of the epochs that have one, as one series; none where no epoch has one."""
    points = [(each["epoch"], y) for each in epochs if (y := value(each)) is not None]
    return [Series(name, [x for x, _ in points], [y for _, y in points])] if points else []


def epoch_chart(name: str, title: str, label: str, series: Sequence[Series]) -> Iterator[Block]:
    """A chart over the epochs, if there is a series to draw."""
    if series:
        yield Curves(name, title, "epoch", label, series, from_zero=name != "loss", whole_x=True)


def value_of(key: str) -> Value:
    """Read the value under `key` from an entry."""
    return lambda entry: entry.get(key)


def _megabytes(epoch: Entry) -> float | None:
    return epoch["peak_bytes"] / 1e6 if "peak_bytes" in epoch else None


def _with_buckets(
    name: str, title: str, label: str, epochs: Sequence[Entry], value: Value
) -> Iterator[Block]:
    """A curve of the epochs; below it a thin curve of the buckets, if there are more of these."""
    series = epoch_series("epochs", epochs, value)
    points = [
        (epoch["epoch"] - 1 + place / len(buckets), y, each)
        for epoch in epochs
        if (buckets := records(epoch, "buckets"))
        for place, each in enumerate(buckets, start=1)
        if (y := value(each)) is not None
    ]
    if len(points) > (len(series[0].x) if series else 0):
        tips = [f"({each.get('lhs')}, {each.get('rhs')}): {number(y)}" for _, y, each in points]
        places, values, _ = zip(*points, strict=True)
        series.insert(0, Series("buckets", places, values, "thin", tips))
    yield from epoch_chart(name, title, label, series)
