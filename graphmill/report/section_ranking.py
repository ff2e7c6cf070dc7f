"""Evaluation: metrics of the ranking, beside simple rankings and the run before; by relation, by degree."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number
from graphmill.report.blocks import Bars, Block, Table, Tile, Tiles
from graphmill.report.reading import mapping, records
from graphmill.report.verdict import same_edges, verdict

SIDES = {"lhs": "lhs asked for", "rhs": "rhs asked for"}
MAX_RELATIONS = 25
MAX_NAMED = 5
PESSIMISTIC = "_pessimistic"
BASELINES = {"most_popular": "most popular", "random": "random"}


def ranking(entry: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the stage's entry in run.json; `before` is the evaluation before, or empty."""
    metrics = mapping(entry, "metrics")
    yield verdict(entry, before)
    split = f"split {entry.get('split')}, {'filtered' if entry.get('filtered') else 'unfiltered'}"
    if entry.get("itself") == "left out":
        split += ", no entity is its own candidate"
    if metrics.get("sampled"):
        split += f", drawn from {number(metrics.get('of_edges'))}"
    shown = [name for name in ("mrr", "hits@1", "hits@10", "mean_rank") if name in metrics]
    tiles = [Tile(name, number(metrics[name])) for name in shown]
    ranked = Tile("edges ranked", number(metrics.get("num_edges")), split)
    yield Tiles([*tiles, ranked, Tile("time", duration(entry.get("seconds")))])
    columns = _columns(entry, before)
    yield from _compared(columns)
    relations = records(entry, "metrics_by_relation")
    if len(relations) > 1:
        yield _by_relation(relations, entry.get("num_relations_ranked", len(relations)))
    bands = {band_name(each): each for each in records(entry, "metrics_by_degree")}
    if bands:
        labels = [f"{name} edges" for name in bands]
        title = "MRR by the degree of the entity asked for"
        note = (
            "Long bars are good. Short bars at few edges are usual, because little is known of them. "
            "Short bars at many edges are bad: more epochs or a larger dimension may help."
        )
        yield Bars("degrees", title, "MRR", labels, _sides(list(bands.values())), note=note)
    yield _metrics(columns, same_edges(entry, before), mapping(entry, "intervals"))
    by_name = [(str(each.get("relation")), each) for each in relations]
    note = (
        "High figures are good, and bad where the MRR is not above those of the most popular and of random "
        "candidates. A relation with few ranked edges says little."
    )
    yield from _table("Metrics by relation", "relation", by_name, note)
    note = "High figures are good; those of entities without train edges can only be low."
    yield from _table("Metrics by degree", "train edges", list(bands.items()), note)


def band_name(band: Mapping[str, Any]) -> str:
    """`3-9`, or `10,000+`."""
    first, last = band["first"], band.get("last")
    if last is None:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _columns(entry: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Metrics of this run, of the run before, and of the simple rankings, as far as run.json has them."""
    simple = mapping(entry, "baselines")
    found = {"this run": mapping(entry, "metrics"), "run before": mapping(before, "metrics")}
    found |= {shown: mapping(simple, name) for name, shown in BASELINES.items()}
    return {name: each for name, each in found.items() if each}


def _compared(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    found = {name: each["mrr"] for name, each in columns.items() if "mrr" in each}
    if len(found) > 1:
        note = (
            "Good: this run's bar is much longer than those of the simple rankings. Random is any order; "
            "most popular puts those candidates first that have most train edges with the relation."
        )
        bars = {"MRR": list(found.values())}
        yield Bars("baselines", "MRR beside simple rankings", "MRR", list(found), bars, note=note)


def _metrics(columns: Mapping[str, Mapping[str, Any]], is_same: bool, intervals: Mapping[str, Any]) -> Block:
    metrics = columns.get("this run", {})
    names = [name for name in metrics if name + PESSIMISTIC in metrics]
    rows = [
        [name, *(number(each.get(name)) for each in columns.values()), number(metrics[name + PESSIMISTIC])]
        for name in names
    ]
    heads = ["metric", *columns, "this run, all equal first"]
    if intervals:
        heads.append("95 % interval")
        rows = [
            [*row, " to ".join(map(number, intervals.get(name, ())))]
            for name, row in zip(names, rows, strict=True)
        ]
    note = (
        "High figures are good, but a low mean_rank. Of equal scores, half count as better. Bad: a last "
        "column much worse than the first, because then the model gives many candidates the same score."
    )
    if "run before" in columns and not is_same:
        note += " The run before ranked other edges, so its column does not compare."
    if intervals:
        note += " The interval tells how far the metrics of all edges and all candidates may be from these."
    return Table("Metrics", heads, rows, note=note)


def _by_relation(relations: Sequence[Mapping[str, Any]], num_all: int) -> Block:
    shown = relations[:MAX_RELATIONS]
    note = f"The {len(shown)} with most ranked edges, of {num_all}. " if num_all > len(shown) else ""
    worse = [str(each.get("relation")) for each in relations if _is_beaten(each)]
    if worse:
        more = f" and {len(worse) - MAX_NAMED} more" if len(worse) > MAX_NAMED else ""
        note += f"Bad: the most popular candidates do better in {', '.join(worse[:MAX_NAMED])}{more}."
    else:
        note += "Long bars are good; a short bar among long ones is a relation that is not learned."
    labels = [str(each.get("relation")) for each in shown]
    return Bars("relations", "MRR by relation", "MRR", labels, _sides(shown), note=note)


def _is_beaten(relation: Mapping[str, Any]) -> bool:
    """Whether popularity ranks the relation's edges better, on both sides together."""
    sides = [mapping(relation, side) for side in SIDES]
    ahead = sum(float(each.get("mrr", 0)) - float(each.get("mrr_most_popular", 0)) for each in sides)
    return ahead < 0


def _sides(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {shown: [mapping(each, side).get("mrr", 0) for each in parts] for side, shown in SIDES.items()}


def _table(
    title: str, first: str, parts: Sequence[tuple[str, Mapping[str, Any]]], note: str
) -> Iterator[Block]:
    keys = {"edges": "num_edges", "MRR": "mrr"}
    keys |= {shown: f"mrr_{name}" for name, shown in BASELINES.items()} | {"hits@10": "hits@10"}
    found = {key for _, each in parts for side in SIDES for key in mapping(each, side)}
    keys = {shown: key for shown, key in keys.items() if key in found}
    columns = [first, *(f"{side} {shown}" for side in SIDES for shown in keys)]
    rows = [
        [name, *(number(mapping(each, side).get(key)) for side in SIDES for key in keys.values())]
        for name, each in parts
    ]
    yield Table(title, columns, rows, folded=True, note=note)
