"""Facts that a ranking needs of all edges: known edges with a ranked query, and degrees of ranked entities.

Of a billion edges few matter. Every entity of a ranked edge has a number; a table over the rows of a bucket's
partition gives the number by the row, so one look-up dismisses almost all edges.

A known cell is one number, slot of the candidate x queries + query. Sorted, the cells of a partition are a
range. Shapes: E edges, H edges with a ranked entity, A entities of ranked edges, K known cells.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.ask.evaluate.queries import Numbers, Queries, Slots, Triples
from graphmill.sorted_arrays import distinct
from graphmill.vocab import Bucket, Partition, Side


class Piece(NamedTuple):
    """Rows start..stop of a bucket file (None: to the end), and whether they are known, and trained on."""

    path: str
    bucket: Bucket
    start: int
    stop: int | None
    is_known: bool
    is_trained: bool


@dataclass(frozen=True, eq=False)
class KnownCells:
    """Contents of pieces: known cells of each side, sorted and distinct [K]; edges of each entity [A]."""

    cells: Mapping[Side, Numbers]
    degrees: Numbers


class Endpoints:
    """The entities of ranked edges.

    Attributes:
        keys: [A] distinct numbers type x end + slot, sorted; an entity's number is its position.
    """

    def __init__(self, slots: Slots, edges: Triples) -> None:
        self._slots, self._types = slots, list(slots.counts)
        self.keys = distinct(np.concatenate([self._keys(edges, side) for side in Side]))
        self._tables: dict[Side, tuple[Partition, npt.NDArray[np.int32]]] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, edges: Triples, side: Side) -> Numbers:
        """The number of each edge's entity: [E]."""
        return np.searchsorted(self.keys, self._keys(edges, side))

    def slots(self, numbers: Numbers) -> Numbers:
        """The slot of each number."""
        return self.keys[numbers] % self._slots.end

    def table(self, side: Side, partition: Partition) -> tuple[npt.NDArray[np.int32], Numbers]:
        """Numbers plus 1 by row, 0 for other entities; and the first row of each static relation: [R].

        The rows are those of all types on that side of a bucket, one type after the other.
        """
        types = list(dict.fromkeys(self._slots.types(side)))
        own = {each: 0 if len(self._slots.counts[each]) == 1 else partition for each in types}
        rows = [self._slots.counts[each][own[each]] for each in types]
        first_row = dict(zip(types, np.cumsum([0, *rows]).tolist(), strict=False))
        if self._tables.get(side, (None, None))[0] != partition:
            table = np.zeros(sum(rows), np.int32)
            for each in types:
                begin = self._types.index(each) * self._slots.end + int(self._slots.first[each][own[each]])
                first, last = np.searchsorted(
                    self.keys, [begin, begin + self._slots.counts[each][own[each]]]
                ).tolist()
                table[first_row[each] + self.keys[first:last] - begin] = np.arange(first + 1, last + 1)
            self._tables[side] = partition, table
        return self._tables[side][1], np.array([first_row[each] for each in self._slots.types(side)])

    def _keys(self, edges: Triples, side: Side) -> Numbers:
        type_of = np.array([self._types.index(each) for each in self._slots.types(side)])
        keys: Numbers = type_of[self._slots.static(edges.rel)] * self._slots.end + edges.slots(side)
        return keys


def scan(
    slots: Slots, edges: Triples, queries: Mapping[Side, Queries], pieces: Iterable[Piece]
) -> KnownCells:
    """Read pieces of bucket files, and find what concerns the ranked `edges`."""
    endpoints = Endpoints(slots, edges)
    degrees = np.zeros(len(endpoints), np.int64)
    cells: dict[Side, list[Numbers]] = {side: [np.empty(0, np.int64)] for side in Side}
    for piece in pieces:
        tables = {side: endpoints.table(side, getattr(piece.bucket, side.value)) for side in Side}
        first = {side: slots.places(side, getattr(piece.bucket, side.value))[0] for side in Side}
        for part in slots.read_checked(piece.path, piece.bucket, piece.start, piece.stop):
            for side, (table, first_row) in tables.items():
                index = getattr(part, side.value)
                row_E = (
                    index if len(set(first_row.tolist())) == 1 else index + first_row[slots.static(part.rel)]
                )
                number_E = table[row_E]
                hit_H = np.flatnonzero(number_E)
                number_H = number_E[hit_H] - 1
                if piece.is_trained:
                    degrees += np.bincount(number_H, minlength=len(degrees))
                if piece.is_known:
                    rel_H = part.rel[hit_H]
                    query_H = queries[side.other].find(rel_H, endpoints.slots(number_H))
                    is_known_H = query_H >= 0
                    candidate_K = getattr(part, side.other.value)[hit_H[is_known_H]]
                    slot_K = first[side.other][slots.static(rel_H[is_known_H])] + candidate_K
                    cells[side.other].append(slot_K * len(queries[side.other]) + query_H[is_known_H])
    return KnownCells(
        {side: distinct(np.concatenate(cell), overwrite=True) for side, cell in cells.items()}, degrees
    )
