"""Evaluation: the metrics of the ranking, in all and in parts, both sides."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphmill.display.readable import duration, number
from graphmill.report.blocks import Bars, Block, Section, Table, Tile, Tiles
from graphmill.report.reading import mapping, records

SIDES = {"lhs": "lhs asked for", "rhs": "rhs asked for"}
MAX_RELATIONS = 25
PESSIMISTIC = "_pessimistic"


def ranking(entry: Mapping[str, Any]) -> Section:
    """The section of the stage's entry in run.json."""
    return Section("ranking", "Ranking of held-out edges", list(_blocks(entry)))


def _blocks(entry: Mapping[str, Any]) -> Iterator[Block]:
    metrics = mapping(entry, "metrics")
    split = f"split {entry.get('split')}, {'filtered' if entry.get('filtered') else 'unfiltered'}"
    tiles = [
        Tile(name, number(metrics[name]))
        for name in ("mrr", "hits@1", "hits@10", "mean_rank")
        if name in metrics
    ]
    ranked = Tile("edges ranked", number(metrics.get("num_edges")), split)
    yield Tiles([*tiles, ranked, Tile("time", duration(entry.get("seconds")))])
    relations = records(entry, "metrics_by_relation")
    if len(relations) > 1:
        yield _by_relation(relations, entry.get("num_relations_ranked", len(relations)))
    bands = records(entry, "metrics_by_degree")
    if bands:
        labels = [f"{band_name(band)} edges" for band in bands]
        yield Bars(
            "degrees",
            "MRR by the degree of the entity asked for",
            "MRR",
            labels,
            _sides(bands),
        )
    names = [name for name in metrics if name + PESSIMISTIC in metrics]
    rows = [[name, number(metrics[name]), number(metrics[name + PESSIMISTIC])] for name in names]
    yield Table("Metrics", ["metric", "ties count half", "ties come first"], rows)
    yield from _tables(relations, bands)


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


def _tables(relations: Sequence[Mapping[str, Any]], bands: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    kinds = (
        ("Metrics by relation", "relation", [str(each.get("relation")) for each in relations], relations),
        ("Metrics by degree", "train edges", [band_name(each) for each in bands], bands),
    )
    for title, first, names, parts in kinds:
        columns = [first, *(f"{side} {key}" for side in SIDES for key in ("edges", "MRR", "hits@10"))]
        rows = [
            [
                name,
                *(
                    number(mapping(each, side).get(key))
                    for side in SIDES
                    for key in ("num_edges", "mrr", "hits@10")
                ),
            ]
            for name, each in zip(names, parts, strict=True)
        ]
        if rows:
            yield Table(title, columns, rows, folded=True)
