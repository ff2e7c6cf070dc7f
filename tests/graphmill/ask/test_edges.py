"""Edges of some rows, and degrees, from bucket files: against looking at one edge at a time."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.ask import edges as module
from graphmill.ask.edges import Graph, Piece, Triples, degrees_of, edges_of, pieces_of
from graphmill.config.partitions import all_buckets
from graphmill.errors import FormatError
from graphmill.vocab import Side
from tests.graphmill.ask.evaluate.test_baselines import COUNTS, DYNAMIC, STATIC, drawn, triples
from tests.graphmill.ask.predict.world import write_edges, write_world


@pytest.mark.parametrize(("relations", "lookup"), [(STATIC, "table"), (DYNAMIC, "search")])
def test_finds_what_a_search_finds(tmp_path, rng, monkeypatch, relations, lookup):
    if lookup == "search":
        monkeypatch.setattr(module, "TABLE_ROWS", 0)
        monkeypatch.setattr(module, "TABLE_SHARE", 0)
    monkeypatch.setattr(module, "READ_EDGES", 7)
    world = write_world(tmp_path / "run", counts=COUNTS, splits=(), **relations)
    graph = Graph(world.config, COUNTS, 3)
    every, test = drawn(world, rng, 400), triples(drawn(world, rng, 12))
    path, rows = str(tmp_path / "train"), graph.rows_of(test)
    write_edges(world.config, COUNTS, every, path)
    pieces = [
        Piece(path, bucket, *part) for bucket in all_buckets(world.config) for part in ((0, 3), (3, None))
    ]
    found: list[tuple[int, Side, tuple[int, int, int]]] = []
    for of_rows in edges_of(graph, rows, pieces):
        own: Triples = of_rows.edges
        columns = of_rows.place_H.tolist(), own.lhs.tolist(), own.rel.tolist(), own.rhs.tolist()
        found += [(place, of_rows.side, edge) for place, *edge in zip(*columns, strict=True)]
    place_of: dict[tuple[str, int], int] = {}
    for side in Side:
        names = [world.types(relation)[side] for relation in test.rel.tolist()]
        ends = zip(names, test.ends(side).tolist(), strict=True)
        place_of |= zip(ends, graph.places_of(rows, side, test).tolist(), strict=True)
    expected = [
        (place_of[end], side, list(edge))
        for edge in every
        for side in Side
        if (end := (world.types(edge[1])[side], edge[0 if side is Side.LHS else 2])) in place_of
    ]
    assert sorted(found) == sorted(expected)
    assert len(place_of) == sum(map(len, rows.values())) > 5
    degrees = degrees_of(graph, rows, pieces)
    assert degrees.tolist() == [[place for place, *_ in expected].count(n) for n in range(len(degrees))]
    some = edges_of(graph, rows, pieces, [Side.RHS], relation=1)
    assert sum(len(of_rows.edges) for of_rows in some) == sum(
        side is Side.RHS and edge[1] == 1 for _, side, edge in expected
    )


def test_degrees_of_a_partition(tmp_path: Path, rng: np.random.Generator) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS, splits=(), **STATIC)
    graph, every = Graph(world.config, COUNTS), drawn(world, rng, 300)
    write_edges(world.config, COUNTS, every, str(tmp_path / "train"))
    key = "user", 1
    paths = [str(tmp_path / "train"), str(tmp_path / "gone")]
    found = degrees_of(graph, {key: np.arange(COUNTS["user"][1])}, pieces_of(world.config, paths, key))
    own = triples(every)
    of_users = {side: [world.types(rel)[side] == "user" for rel in own.rel.tolist()] for side in Side}
    ends = np.concatenate([own.ends(side)[of_users[side]] for side in Side]).tolist()
    assert found.tolist() == [ends.count(number) for number in range(9, 13)]


def test_a_list_of_features_has_no_place():
    for rows in ([0, 2], [1, 2]):
        assert module._lookup(np.array(rows), 3)(np.array([-1, 2])).tolist() == [-1, 1]


def test_rows_beyond_the_counts_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS, splits=(), **STATIC)
    write_edges(world.config, COUNTS, drawn(world, rng, 300), str(tmp_path / "train"))
    fewer = Graph(world.config, {"user": [9, 3, 7]})  # items have no numbers, and are not checked
    with pytest.raises(FormatError, match=r"\[\d+\] is 3; expected less than 3, rows of"):
        for piece in pieces_of(world.config, [str(tmp_path / "train")], ("user", 1)):
            list(fewer.read(piece))
