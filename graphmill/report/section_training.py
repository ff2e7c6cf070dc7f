"""Training: loss, held-out MRR, validation MRR, speed, waiting time and memory, by epoch and bucket."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number, size
from graphmill.report.blocks import Block, Curves, Note, Series, Table, Tile, Tiles
from graphmill.report.reading import records

Entry = Mapping[str, Any]
Value = Callable[[Entry], float | None]

CURVE = "Good: it rises and levels off. Bad: it falls again: the model learns the train edges by heart."
SPEED = "Good: a level line. A line that falls waits for disks, for the network or for other programs."
WAITS = "Good: near zero. Where it is much of an epoch, train.memory_partitions or faster disks help."
MEMBERS = "Good: members that are alike. The curves are those of member 0."
SWAPS = "Few are good. Fewer partitions, or more of them in memory, mean fewer reads and writes."
MEMORY = "Good: a level line below the memory of a worker. A line that rises to it ends in a killed worker."
STEEP = 0.1
"""A last epoch that lowers the loss by this fraction of all that was gained is not the last that helps."""


def training(entry: Entry) -> Iterator[Block]:
    """Blocks about the stage's entry in run.json."""
    epochs = records(entry, "epochs")
    yield Tiles(list(_tiles(entry, epochs)))
    yield from _members(records(entry, "members"))
    if not epochs:
        yield Note("run.json has no figures of single epochs.")
        return
    validation = records(entry, "validation")
    yield from _with_buckets("loss", "Loss", "loss", epochs, value_of("loss"), loss_note(epochs))
    yield from _with_buckets("mrr", "MRR of the held-out sample", "mrr", epochs, value_of("mrr"), CURVE)
    ranked = epoch_series("all", validation, value_of("mrr"))
    yield from epoch_chart("validation", "MRR in validation", "MRR", ranked, CURVE)
    yield from _with_buckets("edges_per_s", "Speed", "edges per second", epochs, speed, SPEED)
    waited = _if_any(epoch_series("waited", epochs, value_of("swap_wait_s")))
    yield from epoch_chart("waits", "Waiting for partitions and edges", "seconds", waited, WAITS)
    read = _if_any(epoch_series("read", epochs, value_of("partitions_read")))
    written = _if_any(epoch_series("written", epochs, value_of("partitions_written")))
    yield from epoch_chart("swaps", "Partitions swapped", "partitions", read + written, SWAPS)
    memory = epoch_series("memory", epochs, _megabytes)
    yield from epoch_chart("memory", "Largest process so far", "MB", memory, MEMORY)


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


def _members(members: Sequence[Entry]) -> Iterator[Block]:
    """A line for each model of an ensemble."""
    if not members:
        return
    columns = ["member", "seed", "loss", "validation MRR", "time"]
    rows = [
        [
            str(place),
            str(each.get("seed", "-")),
            number(each.get("loss")),
            number(each.get("validation_mrr")),
            duration(each.get("total_seconds")),
        ]
        for place, each in enumerate(members)
    ]
    yield Table("Members of the ensemble", columns, rows, 2, note=MEMBERS)


def speed(visit: Entry) -> float | None:
    """Edges per second of an epoch or a bucket."""
    if "edges_per_s" in visit:
        return float(visit["edges_per_s"])
    return visit["edges"] / visit["seconds"] if visit.get("seconds") else None


def epoch_series(name: str, epochs: Sequence[Entry], value: Value) -> list[Series]:
    """The values of the epochs that have one, as one series; none where no epoch has one."""
    points = [(each["epoch"], y) for each in epochs if (y := value(each)) is not None]
    return [Series(name, [x for x, _ in points], [y for _, y in points])] if points else []


def epoch_chart(name: str, title: str, label: str, series: Sequence[Series], note: str) -> Iterator[Block]:
    """A chart over the epochs, if a series has more than one point to draw."""
    if any(len(each.x) > 1 for each in series):
        from_zero = name != "loss"
        yield Curves(name, title, "epoch", label, series, from_zero=from_zero, whole_x=True, note=note)


def loss_note(epochs: Sequence[Entry]) -> str:
    """Say what the losses of the epochs mean."""
    losses = [float(each["loss"]) for each in epochs if "loss" in each]
    if len(losses) < 2:
        return "Good: it falls and levels off. Bad: it rises."
    first, last, gained = losses[0], losses[-1], losses[0] - min(losses)
    said = f"from {number(first)} to {number(last)}"
    if last > first:
        return f"Bad: the loss rose {said}; a smaller learning rate (lr) may help."
    if last > min(losses) + STEEP * gained:
        return f"Fair: the loss fell {said}, but was lower before; a smaller learning rate (lr) may help."
    if losses[-2] - last > STEEP * gained:
        return f"Fair: the loss fell {said} and is still falling; more epochs may help."
    return f"Good: the loss fell {said} and has levelled off."


def value_of(key: str) -> Value:
    """Read the value under `key` from an entry."""
    return lambda entry: entry.get(key)


def _if_any(series: list[Series]) -> list[Series]:
    """The series that are not zero throughout."""
    return [each for each in series if any(each.y)]


def _megabytes(epoch: Entry) -> float | None:
    return epoch["peak_bytes"] / 1e6 if "peak_bytes" in epoch else None


def _with_buckets(
    name: str, title: str, label: str, epochs: Sequence[Entry], value: Value, note: str
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
    yield from epoch_chart(name, title, label, series, note)
