"""Queries of a ranking: edges grouped into distinct queries.

To rank an edge on one side is to compare its query (the other side's entity and the relation) with
candidates for that side. Edges with the same query share its scores. Queries with the same candidates form
a group, cut in blocks of `height` queries. A cell is one score, candidate x queries + query.

Shapes: E edges, Q queries, K cells. All numbers are int64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphmill.ask.edges import Graph, Integers, Numbers, Triples
from graphmill.config import Config
from graphmill.sorted_arrays import positions
from graphmill.vocab import Side

VECTOR_BYTES = 64 << 20  # of a block, where no scores are kept


class BlockSize(NamedTuple):
    """Queries and candidates of a block of scores."""

    height: int
    width: int


def block_sizes(block_bytes: int, counts: Sequence[int]) -> BlockSize:
    """Size of a block of scores of at most `block_bytes`; the width is a multiple of 64."""
    largest = max(counts)
    cells = block_bytes // 4
    width = min(max(64, int(cells**0.5) // 64 * 64), -(-max(largest, 1) // 64) * 64)
    return BlockSize(max(1, cells // width), width)


def default_block_bytes(config: Config, *, fused: bool) -> int:
    """Bytes of a block of scores. `fused` kernels keep no scores: the vectors of a block limit its size."""
    if fused:
        largest = max(config.entity_dimension(entity_type) for entity_type in config.entities)
        return 4 * (VECTOR_BYTES // (4 * largest)) ** 2
    return 256 << 20 if config.num_gpus else 8 << 20


def chunks(whole: slice, size: int) -> Iterator[slice]:
    """The range, `size` at a time."""
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))


@dataclass(frozen=True)
class Group:
    """Queries start..stop with the same candidates: those of `entity_type`, transformed by `relation`."""

    relation: int
    entity_type: str
    start: int
    stop: int


class Queries:
    """The distinct queries of edges on one side, in the order of their groups.

    Attributes:
        order: [E], the edges in the order of their queries.
        of_edge: [E], the query of each edge, in that order.
        candidates: [E], each edge's own candidate, in that order.
        rel, ends: [Q], relation and other side's entity of each query.
        groups: the groups, in order.
    """

    def __init__(self, graph: Graph, side: Side, edges: Triples, block: BlockSize) -> None:
        self.graph, self.side, (self.height, self.width) = graph, side, block
        self._rank, self._group = self._ranks_of_relations()
        unsorted = self._keys(edges.rel, edges.ends(side.other))
        self.order = np.argsort(unsorted, kind="stable")
        self._query_keys, starts, lengths = np.unique(
            unsorted[self.order], return_index=True, return_counts=True
        )
        self.of_edge = np.repeat(np.arange(len(starts)), lengths)
        self.candidates = edges.ends(side)[self.order]
        self.rel = edges.rel[self.order][starts]
        self.ends = edges.ends(side.other)[self.order][starts]
        self.groups = list(self._make_groups())

    def __len__(self) -> int:
        return len(self.rel)

    def blocks_of(self, entity_type: str) -> Iterator[tuple[Side, int, int]]:
        """Side, start and stop of each block of queries that has candidates of a type, in order."""
        for group in self.groups:
            if group.entity_type == entity_type:
                for rows in chunks(slice(group.start, group.stop), self.height):
                    yield self.side, rows.start, rows.stop

    def find(self, rel: Integers, ends: Numbers) -> Numbers:
        """The query of each pair of a relation and the other side's entity, -1 for one without: [K]."""
        return positions(self._query_keys, self._keys(rel, ends))

    def _keys(self, rel: Integers, ends: Numbers) -> Numbers:
        return self._rank[rel] * self.graph.end + ends

    def _ranks_of_relations(self) -> tuple[Numbers, Numbers]:
        """Number of each relation, consecutive within its group, and the relation's group."""
        config = self.graph.config
        if config.dynamic_relations:
            num_relations = self.graph.num_relations
            return np.arange(num_relations), np.zeros(num_relations, np.int64)
        # A static operator transforms the candidates for rhs, so each relation has its own candidates.
        names = [
            f"relation.{number}"
            if self.side is Side.RHS and relation.operator != "none"
            else relation.entity_type(self.side)
            for number, relation in enumerate(config.relations)
        ]
        number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
        group = np.array([number_of[name] for name in names])
        return np.argsort(np.argsort(group, kind="stable")), group

    def _make_groups(self) -> Iterator[Group]:
        if not len(self):
            return
        group = self._group[self.rel]
        starts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            relation = int(self.graph.static(self.rel[start : start + 1])[0])
            yield Group(relation, self.graph.types(self.side)[relation], start, stop)
