"""Known edges and degrees from bucket files: against looking at one edge at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill.ask.evaluate.known import Endpoints, Piece, scan
from graphmill.ask.evaluate.queries import Queries, Slots
from graphmill.config.partitions import all_buckets
from graphmill.vocab import Side
from tests.graphmill.ask.evaluate.test_baselines import (
    COUNTS,
    DYNAMIC,
    STATIC,
    drawn,
    settings,
    triples,
    type_of,
    write,
)


@pytest.mark.parametrize("relations", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_finds_what_a_search_finds(
    tmp_path: Path, rng: np.random.Generator, relations: dict[str, Any]
) -> None:
    config = settings(tmp_path, relations)
    slots = Slots(config, COUNTS, 3, 64)
    train, valid, test = drawn(config, rng, 400), drawn(config, rng, 60), drawn(config, rng, 12)
    for name, edges in (("train", train), ("valid", valid)):
        write(config, slots, triples(config, slots, edges), str(tmp_path / name))
    ranked = triples(config, slots, test)
    queries = {side: Queries(slots, side, ranked, height=4) for side in Side}
    pieces = [
        Piece(str(tmp_path / name), bucket, start, stop, is_known, is_trained)
        for name, is_known, is_trained in (("train", True, True), ("valid", True, False))
        for bucket in all_buckets(config)
        for start, stop in ((0, 3), (3, None))
    ]
    found = scan(slots, ranked, queries, pieces)
    for side in Side:
        everything = triples(config, slots, [*train, *valid])
        asked = set(zip(ranked.rel.tolist(), ranked.slots(side.other).tolist(), strict=True))
        expected = {
            (rel, other, own)
            for rel, other, own in zip(
                everything.rel.tolist(),
                everything.slots(side.other).tolist(),
                everything.slots(side).tolist(),
                strict=True,
            )
            if (rel, other) in asked
        }
        slot_K, query_K = np.divmod(found.cells[side], len(queries[side]))
        rel_K, other_K = queries[side].rel[query_K], queries[side].slots[query_K]
        cells = list(zip(rel_K.tolist(), other_K.tolist(), slot_K.tolist(), strict=True))
        assert set(cells) == expected
        assert len(cells) == len(expected) > 5
    ends = [
        (type_of(config, edge[1], side), edge[0 if side is Side.LHS else 2])
        for edge in train
        for side in Side
    ]
    numbers = Endpoints(slots, ranked)
    for side in Side:
        own = [(type_of(config, edge[1], side), edge[0 if side is Side.LHS else 2]) for edge in test]
        assert found.degrees[numbers.numbers(ranked, side)].tolist() == [ends.count(each) for each in own]
