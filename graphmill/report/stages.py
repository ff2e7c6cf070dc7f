"""The stages etl and train: rows, entities, relations, buckets, degrees; curves by epoch and bucket."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphmill.display.readable import duration, number, size
from graphmill.report.charts import Scale, Series, bars, curves, heat_map
from graphmill.report.page import Block, Note, PageTable, PageTile, Tiles
from graphmill.run.reading import Entry, mapping, records, total

Value = Callable[[Entry], float | None]

MAX_RELATIONS = 30
TRAIN = "train"

CURVE = "Good: it rises and levels off. Bad: it falls again: the model learns the train edges by heart."
SPEED = "Good: a level line. A line that falls waits for disks, for the network or for other programs."
WAITS = "Good: near zero. Where it is much of an epoch, train.memory_partitions or faster disks help."
MEMBERS = "Good: members that are alike. The curves are those of member 0."
SWAPS = "Few are good. Fewer partitions, or more of them in memory, mean fewer reads and writes."
MEMORY = "Good: a level line below the memory of a worker. A line that rises to it ends in a killed worker."
STEEP = 0.1
"""A last epoch that lowers the loss by this fraction of all that was gained is not the last that helps."""


def etl(entry: Entry) -> Iterator[Block]:
    """Blocks about etl's entry in run.json."""
    yield Tiles(list(_etl_tiles(entry)))
    rows = dict(_rows(entry))
    counts = {"rows": list(rows.values())}
    yield from bars("rows", "What became of the rows", "rows", list(rows), counts, note=_rows_note(entry))
    yield from _entities(mapping(entry, "num_entities"))
    yield from _relations(mapping(entry, "num_edges_by_relation"))
    yield from _buckets(entry)
    yield from _degrees(entry)


def _etl_tiles(entry: Entry) -> Iterator[PageTile]:
    rows, seconds, edges = entry.get("num_rows", 0), entry.get("seconds"), mapping(entry, "num_edges")
    yield PageTile("rows in", rows, size(entry.get("bytes_in")))
    splits = ", ".join(f"{name} {number(count)}" for name, count in edges.items())
    yield PageTile("edges kept", total(edges), splits)
    yield PageTile("quarantined rows", entry.get("num_rows_quarantined", 0))
    yield PageTile("edges left out", total(entry.get("num_edges_left_out", {})), "as the settings asked")
    yield PageTile("entities", total(entry.get("num_entities", {})))
    yield PageTile("relations", entry.get("num_relations", 0))
    speed = f"{number(round(rows / seconds))} rows/s" if seconds else ""
    yield PageTile("time", duration(seconds), speed)


def _rows(entry: Entry) -> Iterator[tuple[str, float]]:
    yield "rows in", entry.get("num_rows", 0)
    yield from ((f"kept: {split}", count) for split, count in mapping(entry, "num_edges").items())
    left_out = mapping(entry, "num_edges_left_out").items()
    yield from ((f"left out: {reason}", count) for reason, count in left_out if count)
    yield from ((f"bad row: {reason}", count) for reason, count in mapping(entry, "quarantined").items())


def _rows_note(entry: Entry) -> str:
    bad, all_rows = entry.get("num_rows_quarantined", 0), entry.get("num_rows", 0)
    if not bad:
        return "Good: no row is bad. Rows that are left out are those that the settings ask to leave out."
    said = f"{number(bad)} of {number(all_rows)} rows are bad and teach nothing"
    grade = "Bad: " if bad * 100 > all_rows else "Good: only "
    return f"{grade}{said}; the quarantine has them, with the reason."


def _entities(types: Mapping[str, list[int]]) -> Iterator[Block]:
    totals = {"entities": [total(counts) for counts in types.values()]}
    scale = _scale(totals["entities"])
    note = "Good: as many as you know there are. Far more are often one id in several spellings."
    title = "Entities of each type"
    yield from bars("entities", title, "entities", list(types), totals, scale=scale, note=note)
    series = [Series(name, range(len(counts)), counts) for name, counts in types.items() if len(counts) > 1]
    labels = "Entities of each partition", "partition", "entities"
    note = "Good: level lines, since then all workers have as much to do."
    yield from curves("partitions", *labels, series, from_zero=True, whole_x=True, note=note)


def _relations(by_relation: Mapping[str, int]) -> Iterator[Block]:
    if len(by_relation) < 2:
        return
    most = sorted(by_relation.items(), key=lambda pair: (-pair[1], pair[0]))
    shown, rest = dict(most[:MAX_RELATIONS]), dict(most[MAX_RELATIONS:])
    edges = {"edges": list(shown.values())}
    rest_edges = number(sum(rest.values()))
    note = f"The {MAX_RELATIONS} largest; {len(rest)} more have {rest_edges} edges. " if rest else ""
    note += "Good: hundreds of edges or more. A relation with few is learned badly."
    labels = "relations", "Edges of each relation", "edges", list(shown)
    yield from bars(*labels, edges, scale=_scale(edges["edges"]), note=note)


def _scale(counts: Sequence[int]) -> Scale:
    """A log scale where a linear scale would hide the small counts."""
    return "log" if max(counts, default=1) > 50 * max(min(counts, default=1), 1) else "linear"


def _buckets(entry: Entry) -> Iterator[Block]:
    grids = mapping(entry, "edges_by_bucket")
    grid = mapping(grids, TRAIN) or next(iter(grids.values()), {})
    cells = grid.get("counts", [])
    if len(cells) > 1 or (cells and len(cells[0]) > 1):
        step = grid["partitions_a_cell"]
        note = f"A cell is {step} by {step} partitions. " if step > 1 else ""
        note += "Good: even colours. One bright cell keeps its worker busy while the others wait."
        labels = "rhs partition", "lhs partition", "edges"
        yield from heat_map("buckets", "Edges of each bucket (train)", labels, cells, step, note=note)
        columns = ["split", "buckets", "empty", "smallest", "mean", "largest"]
        keys = ("num_buckets", "num_empty", "min_edges", "mean_edges", "max_edges")
        rows = [[split, *map(bucket.get, keys)] for split, bucket in mapping(entry, "buckets").items()]
        note = "Good: the largest is not far above the mean. Many empty buckets mean too many partitions."
        yield PageTable("Buckets", columns, rows, note=note)


def _degrees(entry: Entry) -> Iterator[Block]:
    histograms = mapping(entry, "degree_histogram").items()
    yield from curves(
        "degrees",
        "How many entities have which degree",
        "train edges of an entity",
        "entities per degree",
        [series for name, bins in histograms for series in _density(name, bins)],
        scale="log",
        note="A straight line is usual: few ids have most of the edges. "
        "Bad: a high left end, since an id with one or two edges hardly learns.",
    )
    quantiles = mapping(entry, "train_degree")
    keys = list(dict.fromkeys(key for quantile in quantiles.values() for key in quantile))
    rows = [[name, *map(quantile.get, keys)] for name, quantile in quantiles.items()]
    note = "Good: the middle (p50) is 5 or more. Below, half of the vectors have learned from little."
    yield PageTable("Degrees", ["type", *keys], rows, note=note)
    highest = mapping(entry, "highest_degrees").items()
    rows = [[name, str(raw_id), degree] for name, few in highest for degree, raw_id in few]
    note = "Good: ids that you know. Bad: a placeholder, such as null or unknown, that many rows share."
    yield PageTable("Ids with most train edges", ["type", "id", "edges"], rows, 2, note=note)
    outside = {name: count for name, count in mapping(entry, "num_entities_outside_train").items() if count}
    if outside:
        counts = ", ".join(f"{number(count)} {name}" for name, count in outside.items())
        yield Note(f"No train edge has these entities, so nothing trains their vectors: {counts}.", "warning")


def _density(name: str, bins: Sequence[Sequence[int]]) -> Iterator[Series]:
    """Entities per degree in the bins that have entities; a log axis cannot show degree 0."""
    seen = [counted for counted in bins if counted[0] > 0 and counted[2]]
    if seen:
        middle = [(first * last) ** 0.5 for first, last, _ in seen]
        density = [entities / (last - first + 1) for first, last, entities in seen]
        spans = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last, _ in seen]
        tips = [f"{name}: {some[2]:,} with {span} edges" for span, some in zip(spans, seen, strict=True)]
        yield Series(name, middle, density, labels=tips)


def training(entry: Entry) -> Iterator[Block]:
    """Blocks about training's entry in run.json."""
    epochs, validation = records(entry, "epochs"), records(entry, "validation")
    yield Tiles(list(_training_tiles(entry, epochs, validation)))
    columns = ["member", "seed", "loss", "validation MRR", "time"]
    rows = [
        [str(place), str(member.get("seed", "-")), *map(member.get, ("loss", "validation_mrr")), seconds]
        for place, member in enumerate(records(entry, "members"))
        for seconds in [duration(member.get("total_seconds"))]
    ]
    yield PageTable("Members of the ensemble", columns, rows, 2, note=MEMBERS)
    if not epochs:
        yield Note("run.json has no figures of single epochs.")
        return
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
    measured = [epoch for epoch in epochs if "peak_bytes" in epoch]
    memory = epoch_series("memory", measured, lambda epoch: epoch["peak_bytes"] / 1e6)
    yield from epoch_chart("memory", "Largest process so far", "MB", memory, MEMORY)


def _training_tiles(entry: Entry, epochs: Sequence[Entry], rankings: Sequence[Entry]) -> Iterator[PageTile]:
    edges = f"{number(entry.get('num_edges'))} edges in this run"
    yield PageTile("epochs", entry.get("num_epochs", len(epochs)), edges)
    yield PageTile(
        "loss", entry.get("loss"), f"from {number(epochs[0].get('loss'))}" if len(epochs) > 1 else ""
    )
    if held := [epoch["mrr"] for epoch in epochs if "mrr" in epoch]:
        yield PageTile("held-out MRR", held[-1], f"best {number(max(held))}")
    if rankings:
        best = max(rankings, key=lambda ranking: ranking["mrr"])
        note = f"after epoch {best['epoch']}, the best of {len(rankings)}"
        yield PageTile("validation MRR", best["mrr"], note)
    yield PageTile("speed", entry.get("edges_per_s"), "edges per second")
    yield PageTile("parameters", entry.get("num_parameters"), str(entry.get("device", "")))
    if peaks := [epoch["peak_bytes"] for epoch in epochs if "peak_bytes" in epoch]:
        yield PageTile("memory", size(max(peaks)), "largest process")
    yield PageTile("time", duration(entry.get("seconds")), "with start and checkpoints")


def speed(visit: Entry) -> float | None:
    """Edges per second of an epoch or a bucket."""
    if "edges_per_s" in visit:
        return float(visit["edges_per_s"])
    return visit["edges"] / visit["seconds"] if visit.get("seconds") else None


def epoch_series(name: str, epochs: Sequence[Entry], value: Value) -> list[Series]:
    """The values of the epochs that have one, as one series; none where no epoch has one."""
    points = [(epoch["epoch"], y) for epoch in epochs if (y := value(epoch)) is not None]
    return [Series(name, [x for x, _ in points], [y for _, y in points])] if points else []


def epoch_chart(name: str, title: str, label: str, series: Sequence[Series], note: str) -> Iterator[Block]:
    """A chart over the epochs, if a series has more than one point to draw."""
    if any(len(curve.x) > 1 for curve in series):
        from_zero = name != "loss"
        yield from curves(name, title, "epoch", label, series, from_zero=from_zero, whole_x=True, note=note)


def loss_note(epochs: Sequence[Entry]) -> str:
    """Say what the losses of the epochs mean."""
    losses = [float(epoch["loss"]) for epoch in epochs if "loss" in epoch]
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
    return [curve for curve in series if any(curve.y)]


def _with_buckets(
    name: str, title: str, label: str, epochs: Sequence[Entry], value: Value, note: str
) -> Iterator[Block]:
    """A curve of the epochs; below it a thin curve of the buckets, if there are more of these."""
    series = epoch_series("epochs", epochs, value)
    points = [
        (epoch["epoch"] - 1 + place / len(buckets), y, bucket)
        for epoch in epochs
        if (buckets := records(epoch, "buckets"))
        for place, bucket in enumerate(buckets, start=1)
        if (y := value(bucket)) is not None
    ]
    if len(points) > (len(series[0].x) if series else 0):
        tips = [f"({bucket.get('lhs')}, {bucket.get('rhs')}): {number(y)}" for _, y, bucket in points]
        places, values, _ = zip(*points, strict=True)
        series.insert(0, Series("buckets", places, values, "thin", tips))
    yield from epoch_chart(name, title, label, series, note)
