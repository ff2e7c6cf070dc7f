"""Evaluation: metrics of the ranking, of all edges, by relation and by degree, for both sides."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number
from graphmill.report.blocks import Bars, Block, Table, Tile, Tiles
from graphmill.report.reading import mapping, records

SIDES = {"lhs": "lhs asked for", "rhs": "rhs asked for"}
MAX_RELATIONS = 25
PESSIMISTIC = "_pessimistic"


def ranking(entry: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the stage's entry in run.json."""
    metrics = mapping(entry, "metrics")
    split = f"split {entry.get('split')}, {'filtered' if entry.get('filtered') else 'unfiltered'}"
    shown = [name for name in ("mrr", "hits@1", "hits@10", "mean_rank") if name in metrics]
    tiles = [Tile(name, number(metrics[name])) for name in shown]
    ranked = Tile("edges ranked", number(metrics.get("num_edges")), split)
    yield Tiles([*tiles, ranked, Tile("time", duration(entry.get("seconds")))])
    relations = records(entry, "metrics_by_relation")
    if len(relations) > 1:
        yield _by_relation(relations, entry.get("num_relations_ranked", len(relations)))
    bands = {band_name(each): each for each in records(entry, "metrics_by_degree")}
    if bands:
        labels = [f"{name} edges" for name in bands]
        title = "MRR by the degree of the entity asked for"
        yield Bars("degrees", title, "MRR", labels, _sides(list(bands.values())))
    names = [name for name in metrics if name + PESSIMISTIC in metrics]
    rows = [[name, number(metrics[name]), number(metrics[name + PESSIMISTIC])] for name in names]
    yield Table("Metrics", ["metric", "ties count half", "ties come first"], rows)
    by_name = [(str(each.get("relation")), each) for each in relations]
    yield from _table("Metrics by relation", "relation", by_name)
    yield from _table("Metrics by degree", "train edges", list(bands.items()))


def band_name(band: Mapping[str, Any]) -> str:
    """`3-9`, or `10,000+`."""
    first, last = band["first"], band.get("last")
    if last is None:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _by_relation(relations: Sequence[Mapping[str, Any]], num_all: int) -> Block:
    shown = relations[:MAX_RELATIONS]
    note = f"The {len(shown)} with most ranked edges, of {num_all}." if num_all > len(shown) else ""
    labels = [str(each.get("relation")) for each in shown]
    return Bars("relations", "MRR by relation", "MRR", labels, _sides(shown), note=note)


def _sides(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {shown: [mapping(each, side).get("mrr", 0) for each in parts] for side, shown in SIDES.items()}


def _table(title: str, first: str, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Block]:
    keys = {"edges": "num_edges", "MRR": "mrr", "hits@10": "hits@10"}
    columns = [first, *(f"{side} {shown}" for side in SIDES for shown in keys)]
    rows = [
        [name, *(number(mapping(each, side).get(key)) for side in SIDES for key in keys.values())]
        for name, each in parts
    ]
    if rows:
        yield Table(title, columns, rows, folded=True)
