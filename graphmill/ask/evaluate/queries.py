"""Queries of a ranking: entities numbered by slots, edges grouped into distinct queries.

A slot numbers an entity of a type through all partitions. Every partition is padded to whole blocks of
`width` candidates, so the slot alone gives the partition, the block and the column in the block.

To rank an edge on one side is to compare its query (the other side's entity and the relation) with
candidates for that side. Edges with the same query share its scores. Queries with the same candidates form
a group, cut in blocks of `height` queries. A cell is one score; the cells of one block of queries against
one block of candidates have consecutive numbers:

    cell = ((query block x candidate blocks + candidate block) x height + row) x width + column

Shapes: E edges, Q queries, K cells. All numbers are int64.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.sorted_arrays import positions
from graphmill.vocab import Bucket, Partition, Side

READ_EDGES = 1 << 20

VECTOR_BYTES = 64 << 20  # of a block, where no scores are kept

Numbers = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Triples:
    """Edges whose sides are slots: [E] each."""

    lhs: Numbers
    rel: Numbers
    rhs: Numbers

    def __len__(self) -> int:
        return len(self.rel)

    def slots(self, side: Side) -> Numbers:
        """The entities of one side."""
        return self.lhs if side is Side.LHS else self.rhs

    def part(self, start: int, stop: int) -> "Triples":
        """Edges start..stop."""
        return Triples(self.lhs[start:stop], self.rel[start:stop], self.rhs[start:stop])

    @classmethod
    def concatenated(cls, parts: Sequence["Triples"]) -> "Triples":
        """All edges of all parts."""
        empty = np.empty(0, np.int64)
        names = ("lhs", "rel", "rhs")
        return cls(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))


def block_sizes(block_bytes: int, counts: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a block of scores of at most `block_bytes`; the width is a multiple of 64."""
    largest = max(counts)
    cells = block_bytes // 4
    width = min(max(64, int(cells**0.5) // 64 * 64), -(-max(largest, 1) // 64) * 64)
    return max(1, cells // width), width


def default_block_bytes(config: Config, *, fused: bool) -> int:
    """Bytes of a block of scores. `fused` kernels keep no scores: the vectors of a block limit its size."""
    if fused:
        largest = max(config.entity_dimension(entity_type) for entity_type in config.entities)
        return 4 * (VECTOR_BYTES // (4 * largest)) ** 2
    return 256 << 20 if config.num_gpus else 8 << 20


class Slots:
    """Slots of all entities: `counts` holds the rows of each partition of each type."""

    def __init__(
        self, config: Config, counts: Mapping[str, Sequence[int]], num_relations: int, width: int
    ) -> None:
        self.config, self.counts = config, counts
        self.num_relations, self.width = num_relations, width
        self.first = {
            entity_type: np.cumsum([0, *(-(-count // width) * width for count in rows)])
            for entity_type, rows in counts.items()
        }
        self.end = max(int(first[-1]) for first in self.first.values())

    def static(self, rel: Integers) -> Integers:
        """Positions in the configuration's list of relations."""
        return np.zeros_like(rel) if self.config.dynamic_relations else rel

    def types(self, side: Side) -> list[str]:
        """Entity types on one side of the relations in the configuration's list."""
        return [relation.entity_type(side) for relation in self.config.relations]

    def read_checked(
        self, path: str, bucket: Bucket, start: int = 0, stop: int | None = None
    ) -> Iterator[edge_buckets.Edges]:
        """Edges start..stop of a bucket file as they are there, at most READ_EDGES at a time."""
        uri = edge_buckets.bucket_uri(path, bucket)
        limits = {side: self.places(side, getattr(bucket, side.value))[1] for side in Side}
        stop = edge_buckets.count_edges(path, bucket) if stop is None else stop
        for first in range(start, stop, READ_EDGES):
            edges = edge_buckets.read_bucket(path, bucket, first, min(first + READ_EDGES, stop))
            _check("rel", edges.rel, None, np.array([self.num_relations]), uri, first)
            relation = self.static(edges.rel)
            for side, limit_R in limits.items():
                _check(side.value, getattr(edges, side.value), relation, limit_R, uri, first)
            yield edges

    def read_bucket(
        self, path: str, bucket: Bucket, start: int = 0, stop: int | None = None
    ) -> Iterator[Triples]:
        """Edges start..stop of a bucket file by slots, at most READ_EDGES at a time; see `read_checked`."""
        first = {side: self.places(side, getattr(bucket, side.value))[0] for side in Side}
        for edges in self.read_checked(path, bucket, start, stop):
            rel = edges.rel.astype(np.int64, copy=False)
            relation = self.static(rel)
            lhs, rhs = first[Side.LHS][relation] + edges.lhs, first[Side.RHS][relation] + edges.rhs
            yield Triples(lhs, rel, rhs)

    def visits(
        self, side: Side, rel: Numbers, slots: Numbers
    ) -> Iterator[tuple[str, Partition, Numbers, Numbers]]:
        """Partitions of entities, each once: type, partition, positions in `slots`, indices in it."""
        relation, types = self.static(rel), np.array(self.types(side))
        for entity_type in dict.fromkeys(types.tolist()):
            chosen = np.flatnonzero((types == entity_type)[relation])
            first = self.first[entity_type]
            partitions = np.searchsorted(first, slots[chosen], side="right") - 1
            for partition in np.unique(partitions).tolist():
                positions = chosen[partitions == partition]
                yield entity_type, partition, positions, slots[positions] - first[partition]

    def places(self, side: Side, partition: Partition) -> tuple[Numbers, Numbers]:
        """First slot and rows of each static relation's partition, on one side of a bucket: [R], [R]."""
        keys = [(each, 0 if len(self.counts[each]) == 1 else partition) for each in self.types(side)]
        first = np.array([self.first[name][own] for name, own in keys])
        return first, np.array([self.counts[name][own] for name, own in keys])


@dataclass(frozen=True)
class Group:
    """Queries start..stop with the same candidates: those of `entity_type`, transformed by `relation`."""

    relation: int
    entity_type: str
    start: int
    stop: int
    first_block: int


class Queries:
    """The distinct queries of edges on one side, in the order of their groups.

    Attributes:
        order: [E], the edges in the order of their queries.
        of_edge: [E], the query of each edge, in that order.
        candidates: [E], the slot of each edge's own candidate, in that order.
        rel, slots: [Q], relation and other side's entity of each query.
        row: [Q], the row of each query in its block.
        groups: the groups, in order.
    """

    def __init__(self, slots: Slots, side: Side, edges: Triples, height: int) -> None:
        self.slots_of_types, self.side, self.height = slots, side, height
        self._num_candidate_blocks = slots.end // slots.width
        self._rank, self._group = self._ranks_of_relations()
        unsorted = self._keys(edges)
        self.order = np.argsort(unsorted, kind="stable")
        self._query_keys, starts, lengths = np.unique(
            unsorted[self.order], return_index=True, return_counts=True
        )
        self.of_edge = np.repeat(np.arange(len(starts)), lengths)
        self.candidates = edges.slots(side)[self.order]
        self.rel = edges.rel[self.order][starts]
        self.slots = edges.slots(side.other)[self.order][starts]
        self.groups = list(self._make_groups())
        firsts = np.array([group.start for group in self.groups], np.int64)
        blocks = np.array([group.first_block for group in self.groups], np.int64)
        number = np.arange(len(starts))
        group = np.searchsorted(firsts, number, side="right") - 1
        self._block = blocks[group] + (number - firsts[group]) // height
        self.row = (number - firsts[group]) % height

    def __len__(self) -> int:
        return len(self.rel)

    def blocks_of(self, entity_type: str) -> Iterator[tuple[Side, int, int]]:
        """Side, start and stop of each block of queries that has candidates of a type, in order."""
        for group in self.groups:
            if group.entity_type == entity_type:
                for start in range(group.start, group.stop, self.height):
                    yield self.side, start, min(start + self.height, group.stop)

    def num_scores(self) -> int:
        """Pairs of a query and a candidate."""
        counts = self.slots_of_types.counts
        return sum((group.stop - group.start) * sum(counts[group.entity_type]) for group in self.groups)

    def cells(self, query: Numbers, slot: Numbers) -> Numbers:
        """The cells of pairs of a query and a candidate."""
        width = self.slots_of_types.width
        product = self._block[query] * self._num_candidate_blocks + slot // width
        return (product * self.height + self.row[query]) * width + slot % width

    def within(
        self, cells: Numbers, query_block: int, first_slot: int, last_slot: int
    ) -> tuple[Numbers, Numbers]:
        """Rows and slots of those sorted `cells` of a query block that are in the blocks of these slots."""
        width = self.slots_of_types.width
        size, first_block = self.height * width, query_block * self._num_candidate_blocks
        ends = (first_block + first_slot // width) * size, (first_block + last_slot // width + 1) * size
        start, stop = np.searchsorted(cells, ends)
        block, place = np.divmod(cells[start:stop], size)
        row, column = np.divmod(place, width)
        return row, (block - first_block) * width + column

    def find(self, rel: Integers, slots: Numbers) -> Numbers:
        """The query of each pair of a relation and the other side's entity, -1 for one without: [K]."""
        keys = self._rank[rel] * self.slots_of_types.end + slots
        return positions(self._query_keys, keys)

    def _keys(self, edges: Triples) -> Numbers:
        return self._rank[edges.rel] * self.slots_of_types.end + edges.slots(self.side.other)

    def _ranks_of_relations(self) -> tuple[Numbers, Numbers]:
        """Number of each relation, consecutive within its group, and the relation's group."""
        config = self.slots_of_types.config
        if config.dynamic_relations:
            num_relations = self.slots_of_types.num_relations
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
        first_block = 0
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            relation = int(self.slots_of_types.static(self.rel[start : start + 1])[0])
            yield Group(relation, self.slots_of_types.types(self.side)[relation], start, stop, first_block)
            first_block += -(-(stop - start) // self.height)


def _check(
    column: str, values: Integers, relation: Integers | None, limits: Numbers, uri: str, first_row: int
) -> None:
    """Refuse values that reach the limit; `limits` has one for all, or one for each relation."""
    if int(values.max(initial=-1)) < limits.min():
        return
    limit = np.broadcast_to(limits if relation is None else limits[relation], values.shape)
    wrong = np.flatnonzero(values >= limit)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"{uri}: {column}[{first_row + row}] is {values[row]}; expected less than {limit[row]}: "
            "the bucket and the counts are not from the same run"
        )
