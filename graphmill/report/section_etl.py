"""ETL: rows, entities, relations, buckets and degrees."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number, size
from graphmill.report.blocks import Bars, Block, Curves, HeatMap, Note, Scale, Series, Table, Tile, Tiles
from graphmill.report.reading import mapping, total

MAX_RELATIONS = 30
TRAIN = "train"


def etl(entry: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the stage's entry in run.json."""
    yield Tiles(list(_tiles(entry)))
    rows = dict(_rows(entry))
    counts = {"rows": list(rows.values())}
    yield Bars("rows", "What became of the rows", "rows", list(rows), counts, note=_rows_note(entry))
    if types := mapping(entry, "num_entities"):
        yield from _entities(types)
    by_relation = mapping(entry, "num_edges_by_relation")
    if len(by_relation) > 1:
        yield _relations(by_relation)
    yield from _buckets(entry)
    yield from _degrees(entry)


def _tiles(entry: Mapping[str, Any]) -> Iterator[Tile]:
    rows, seconds = entry.get("num_rows", 0), entry.get("seconds")
    edges = mapping(entry, "num_edges")
    yield Tile("rows in", number(rows), size(entry.get("bytes_in")))
    splits = ", ".join(f"{name} {number(count)}" for name, count in edges.items())
    yield Tile("edges kept", number(total(edges)), splits)
    yield Tile("quarantined rows", number(entry.get("num_rows_quarantined", 0)))
    yield Tile("edges left out", number(total(entry.get("num_edges_left_out", {}))), "as the settings asked")
    yield Tile("entities", number(total(entry.get("num_entities", {}))))
    yield Tile("relations", number(entry.get("num_relations", 0)))
    speed = f"{number(round(rows / seconds))} rows/s" if seconds else ""
    yield Tile("time", duration(seconds), speed)


def _rows(entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    yield "rows in", entry.get("num_rows", 0)
    yield from ((f"kept: {split}", count) for split, count in mapping(entry, "num_edges").items())
    left_out = mapping(entry, "num_edges_left_out").items()
    yield from ((f"left out: {reason}", count) for reason, count in left_out if count)
    yield from ((f"bad row: {reason}", count) for reason, count in mapping(entry, "quarantined").items())


def _rows_note(entry: Mapping[str, Any]) -> str:
    """Say how many rows were lost."""
    bad, all_rows = entry.get("num_rows_quarantined", 0), entry.get("num_rows", 0)
    if not bad:
        return "Good: no row is bad. Rows that are left out are those that the settings ask to leave out."
    said = f"{number(bad)} of {number(all_rows)} rows are bad and teach nothing"
    if bad * 100 > all_rows:
        return f"Bad: {said}; the quarantine has them, with the reason."
    return f"Good: only {said}; the quarantine has them, with the reason."


def _entities(types: Mapping[str, list[int]]) -> Iterator[Block]:
    totals = {"entities": [total(counts) for counts in types.values()]}
    scale = _scale(totals["entities"])
    note = "Good: as many as you know there are. Far more are often one id in several spellings."
    yield Bars("entities", "Entities of each type", "entities", list(types), totals, scale=scale, note=note)
    series = [
        Series(name, list(range(len(counts))), counts) for name, counts in types.items() if len(counts) > 1
    ]
    if series:
        title = "Entities of each partition"
        labels = "partition", "entities"
        note = "Good: level lines, since then all workers have as much to do."
        yield Curves("partitions", title, *labels, series, from_zero=True, whole_x=True, note=note)


def _relations(by_relation: Mapping[str, int]) -> Block:
    most = sorted(by_relation.items(), key=lambda pair: (-pair[1], pair[0]))
    shown, rest = dict(most[:MAX_RELATIONS]), dict(most[MAX_RELATIONS:])
    counts = list(shown.values())
    rest_edges = number(sum(rest.values()))
    note = "Good: hundreds of edges or more. A relation with few is learned badly."
    note = f"The {MAX_RELATIONS} largest; {len(rest)} more have {rest_edges} edges. {note}" if rest else note
    title = "Edges of each relation"
    return Bars("relations", title, "edges", list(shown), {"edges": counts}, scale=_scale(counts), note=note)


def _scale(counts: Sequence[int]) -> Scale:
    """A log scale where a linear scale would hide the small counts."""
    return "log" if max(counts, default=1) > 50 * max(min(counts, default=1), 1) else "linear"


def _buckets(entry: Mapping[str, Any]) -> Iterator[Block]:
    grids = mapping(entry, "edges_by_bucket")
    grid = mapping(grids, TRAIN) or next(iter(grids.values()), {})
    cells = grid.get("counts", [])
    if len(cells) > 1 or (cells and len(cells[0]) > 1):
        step = grid["partitions_a_cell"]
        note = "Good: even colours. One bright cell keeps its worker busy while the others wait."
        note = f"A cell is {step} by {step} partitions. {note}" if step > 1 else note
        title = "Edges of each bucket (train)"
        yield HeatMap("buckets", title, "rhs partition", "lhs partition", "edges", cells, step, note=note)
        columns = ["split", "buckets", "empty", "smallest", "mean", "largest"]
        keys = ("num_buckets", "num_empty", "min_edges", "mean_edges", "max_edges")
        summary = mapping(entry, "buckets").items()
        rows = [[split, *(number(each.get(key)) for key in keys)] for split, each in summary]
        note = "Good: the largest is not far above the mean. Many empty buckets mean too many partitions."
        yield Table("Buckets", columns, rows, note=note)


def _degrees(entry: Mapping[str, Any]) -> Iterator[Block]:
    histograms = mapping(entry, "degree_histogram").items()
    series = [each for name, bins in histograms for each in _density(name, bins)]
    if series:
        yield Curves(
            "degrees",
            "How many entities have which degree",
            "train edges of an entity",
            "entities per degree",
            series,
            x_scale="log",
            y_scale="log",
            note="A straight line is usual: few ids have most of the edges. "
            "Bad: a high left end, since an id with one or two edges hardly learns.",
        )
    quantiles = mapping(entry, "train_degree")
    if quantiles:
        columns = ["type", *dict.fromkeys(key for each in quantiles.values() for key in each)]
        rows = [[name, *(number(each.get(key)) for key in columns[1:])] for name, each in quantiles.items()]
        note = "Good: the middle (p50) is 5 or more. Below, half of the vectors have learned from little."
        yield Table("Degrees", columns, rows, note=note)
    highest = mapping(entry, "highest_degrees")
    rows = [[name, str(raw_id), number(degree)] for name, few in highest.items() for degree, raw_id in few]
    if rows:
        note = "Good: ids that you know. Bad: a placeholder, such as null or unknown, that many rows share."
        yield Table("Ids with most train edges", ["type", "id", "edges"], rows, 2, note=note)
    outside = {name: count for name, count in mapping(entry, "num_entities_outside_train").items() if count}
    if outside:
        counts = ", ".join(f"{number(count)} {name}" for name, count in outside.items())
        yield Note(f"No train edge has these entities, so nothing trains their vectors: {counts}.", "warning")


def _density(name: str, bins: Sequence[Sequence[int]]) -> Iterator[Series]:
    """Entities per degree in the bins that have entities; a log axis cannot show degree 0."""
    seen = [each for each in bins if each[0] > 0 and each[2]]
    if seen:
        middle = [(first * last) ** 0.5 for first, last, _ in seen]
        density = [entities / (last - first + 1) for first, last, entities in seen]
        tips = [f"{name}: {entities:,} with {_span(first, last)}" for first, last, entities in seen]
        yield Series(name, middle, density, labels=tips)


def _span(first: int, last: int) -> str:
    return f"{first:,} edges" if first == last else f"{first:,} to {last:,} edges"
