"""Breakdown of ranking metrics: by side, by relation, by the degree of the entity that was ranked.

The breakdown in run.json stays small: the relations with most edges, and a few bands of degrees. A degree is
the number of an entity's edges among the edges that were trained on.

Shapes: E edges.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.vocab import Side
from train.evaluation.queries import Numbers, Slots, Triples
from train.evaluation.ranking_metrics import Ranks

MAX_RELATIONS = 100
FIRST_DEGREES = (0, 1, 3, 10, 30, 100, 300, 1000, 10_000)  # the first degree of each band

Selected = npt.NDArray[np.bool_]


def break_down(
    ranks: Mapping[Side, Ranks],
    edges: Triples,
    slots: Slots,
    trained: Iterable[Triples],
    names: Sequence[str],
) -> dict[str, Any]:
    """The breakdown, for run.json.

    Args:
        ranks: ranks of each side, in the order of the edges.
        edges: the ranked edges.
        slots: slots of the entities.
        trained: the edges that were trained on, in parts that fit in memory.
        names: names of the relations, by their number.
    """
    rank_of = {side: 1.0 + each.greater + each.equal / 2 for side, each in ranks.items()}
    degree_of = count_degrees(edges, slots, trained)
    numbers, counts = np.unique(edges.rel, return_counts=True)
    shown = np.argsort(-counts, kind="stable")[:MAX_RELATIONS]
    return {
        "metrics_by_side": {side.value: _metrics(each) for side, each in rank_of.items()},
        "metrics_by_relation": [
            {"relation": names[number]}
            | {side.value: _metrics(each[edges.rel == number]) for side, each in rank_of.items()}
            for number in numbers[shown].tolist()
        ],
        "num_relations_ranked": len(numbers),
        "metrics_by_degree": _by_degree(rank_of, degree_of),
    }


def count_degrees(edges: Triples, slots: Slots, trained: Iterable[Triples]) -> dict[Side, Numbers]:
    """For each side the degree of its entity: the trained edges that have it on either end, [E].

    Memory: 16 bytes per entity of the edges, not of the graph.
    """
    keys = {side: _entity_keys(slots, edges, side) for side in Side}
    asked = np.unique(np.concatenate(list(keys.values())))
    counts = np.zeros(len(asked), np.int64)
    for part in trained:
        for side in Side:
            keys_E = _entity_keys(slots, part, side)
            position_E = np.minimum(np.searchsorted(asked, keys_E), len(asked) - 1)
            counts += np.bincount(position_E[asked[position_E] == keys_E], minlength=len(asked))
    return {side: counts[np.searchsorted(asked, key)] for side, key in keys.items()}


def _entity_keys(slots: Slots, edges: Triples, side: Side) -> Numbers:
    """Numbers that differ for different entities of any types: [E]."""
    types = list(slots.counts)
    relations = range(len(slots.config.relations))
    type_of = np.array([types.index(slots.entity_type(relation, side)) for relation in relations])
    keys: Numbers = type_of[slots.static(edges.rel)] * slots.end + edges.slots(side)
    return keys


def _by_degree(
    rank_of: Mapping[Side, npt.NDArray[np.float64]], degree_of: Mapping[Side, Numbers]
) -> list[dict[str, Any]]:
    bands = []
    for first, end in zip(FIRST_DEGREES, (*FIRST_DEGREES[1:], None), strict=True):
        within: dict[Side, Selected] = {
            side: (each >= first) & (np.True_ if end is None else each < end)
            for side, each in degree_of.items()
        }
        if any(each.any() for each in within.values()):
            band = {side.value: _metrics(rank_of[side][each]) for side, each in within.items()}
            bands.append({"first": first, "last": None if end is None else end - 1} | band)
    return bands


def _metrics(ranks: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(ranks):
        return {"num_edges": 0}
    return {
        "num_edges": len(ranks),
        "mrr": float((1 / ranks).mean()),
        "hits@10": float((ranks <= 10).mean()),
    }
