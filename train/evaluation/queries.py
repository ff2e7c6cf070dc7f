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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from graphmill.config import PbgConfig
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket, Partition, Side
from train.edges.partitions import all_buckets

READ_EDGES = 1 << 20

Numbers = npt.NDArray[np.int64]


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
        columns = ([empty, *(getattr(part, column) for part in parts)] for column in ("lhs", "rel", "rhs"))
        return cls(*(np.concatenate(column) for column in columns))


class Slots:
    """Slots of all entities: `counts` holds the rows of each partition of each type."""

    def __init__(
        self, config: PbgConfig, counts: Mapping[str, Sequence[int]], num_relations: int, width: int
    ) -> None:
        self.config = config
        self.counts = counts
        self.num_relations = num_relations
        self.width = width
        self.first = {
            entity_type: np.cumsum([0, *(-(-count // width) * width for count in rows)])
            for entity_type, rows in counts.items()
        }
        self.end = max(int(first[-1]) for first in self.first.values())

    def static(self, rel: Numbers) -> Numbers:
        """Positions in the configuration's list of relations."""
        return np.zeros_like(rel) if self.config.dynamic_relations else rel

    def entity_type(self, relation: int, side: Side) -> str:
        """Entity type of a relation's side; `relation` is a position in the configuration's list."""
        return self.config.relations[relation].entity_type(side)

    def locate(self, edges: Edges, bucket: Bucket, uri: str, first_row: int = 0) -> Triples:
        """Edges of a bucket by slots; `first_row` is the row of the file that they start at.

        Raises:
            FormatError: an edge points at a relation or an entity that does not exist.
        """
        rel = edges.rel.astype(np.int64, copy=False)
        _check("rel", rel, np.full_like(rel, self.num_relations), uri, first_row)
        sides = {Side.LHS: (bucket.lhs, edges.lhs), Side.RHS: (bucket.rhs, edges.rhs)}
        slots = [
            self._locate_side(side, rel, partition, index, uri, first_row)
            for side, (partition, index) in sides.items()
        ]
        return Triples(slots[0], rel, slots[1])

    def read_bucket(self, path: str, bucket: Bucket) -> Iterator[Triples]:
        """Edges of a bucket file by slots, at most READ_EDGES at a time.

        Raises:
            FormatError: the file is damaged, or an edge points at something that does not exist.
        """
        uri = edge_buckets.bucket_uri(path, bucket)
        for start in range(0, edge_buckets.count_edges(path, bucket), READ_EDGES):
            edges = edge_buckets.read_bucket(path, bucket, start, start + READ_EDGES)
            yield self.locate(edges, bucket, uri, start)

    def read_folders(self, paths: Iterable[str]) -> Iterator[Triples]:
        """Edges of all bucket files of folders by slots, in parts; raises as `read_bucket`."""
        for path, bucket in product(paths, all_buckets(self.config)):
            yield from self.read_bucket(path, bucket)

    def _locate_side(
        self,
        side: Side,
        rel: Numbers,
        partition: Partition,
        index: npt.NDArray[np.integer],
        uri: str,
        first_row: int,
    ) -> Numbers:
        types = [self.entity_type(relation, side) for relation in range(len(self.config.relations))]
        own = [0 if len(self.counts[each]) == 1 else partition for each in types]  # broadcasting
        limit = np.array([self.counts[each][p] for each, p in zip(types, own, strict=True)])
        first = np.array([self.first[each][p] for each, p in zip(types, own, strict=True)])
        relation = self.static(rel)
        _check(side.value, index, limit[relation], uri, first_row)
        slots: Numbers = first[relation] + index
        return slots

    def visits(
        self, side: Side, rel: Numbers, slots: Numbers
    ) -> Iterator[tuple[str, Partition, Numbers, Numbers]]:
        """Partitions of entities, each once: type, partition, positions in `slots`, indices in it."""
        relation = self.static(rel)
        types = np.array([self.entity_type(each, side) for each in range(len(self.config.relations))])
        for entity_type in dict.fromkeys(types.tolist()):
            chosen = np.flatnonzero((types == entity_type)[relation])
            first = self.first[entity_type]
            partitions = np.searchsorted(first, slots[chosen], side="right") - 1
            for partition in np.unique(partitions).tolist():
                positions = chosen[partitions == partition]
                yield entity_type, partition, positions, slots[positions] - first[partition]


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
        self._rank, self._group_of_rank = self._ranks_of_relations()
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

    def num_scores(self) -> int:
        """Scores in all blocks, padding included."""
        ends = self.slots_of_types.first
        return sum((group.stop - group.start) * int(ends[group.entity_type][-1]) for group in self.groups)

    def find(self, edges: Triples) -> Numbers:
        """The query of each edge, or -1 where none of these: [E]."""
        keys = self._keys(edges)
        position = np.minimum(np.searchsorted(self._query_keys, keys), len(self) - 1)
        return np.where(self._query_keys[position] == keys, position, -1)

    def cells(self, query: Numbers, slot: Numbers) -> Numbers:
        """The cells of pairs of a query and a candidate."""
        width = self.slots_of_types.width
        product = self._block[query] * self._num_candidate_blocks + slot // width
        return (product * self.height + self.row[query]) * width + slot % width

    def first_cell(self, query_block: int, candidate_block: int) -> int:
        """The cell at row 0 and column 0 of a block of scores."""
        product = query_block * self._num_candidate_blocks + candidate_block
        return product * self.height * self.slots_of_types.width

    def shared_cells(self, edges: Triples) -> Numbers:
        """The cells of the edges that have one of these queries: [K]."""
        query = self.find(edges)
        shared = np.flatnonzero(query >= 0)
        return self.cells(query[shared], edges.slots(self.side)[shared])

    def _keys(self, edges: Triples) -> Numbers:
        return self._rank[edges.rel] * self.slots_of_types.end + edges.slots(self.side.other)

    def _ranks_of_relations(self) -> tuple[Numbers, Numbers]:
        """Numbers of relations, consecutive within a group, and the group of each number."""
        config = self.slots_of_types.config
        if config.dynamic_relations:
            num_relations = self.slots_of_types.num_relations
            return np.arange(num_relations), np.zeros(num_relations, np.int64)
        names: dict[str, int] = {}
        group = np.empty(len(config.relations), np.int64)
        for number, relation in enumerate(config.relations):
            # A static operator transforms the candidates for rhs, so each relation has its own candidates.
            own = self.side is Side.RHS and relation.operator != "none"
            name = f"relation.{number}" if own else relation.entity_type(self.side)
            group[number] = names.setdefault(name, len(names))
        by_group = np.argsort(group, kind="stable")
        rank = np.empty_like(by_group)
        rank[by_group] = np.arange(len(by_group))
        return rank, group[by_group]

    def _make_groups(self) -> Iterator[Group]:
        if not len(self):
            return
        group = self._group_of_rank[self._rank[self.rel]]
        starts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist()]
        first_block = 0
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            relation = int(self.slots_of_types.static(self.rel[start : start + 1])[0])
            entity_type = self.slots_of_types.entity_type(relation, self.side)
            yield Group(relation, entity_type, start, stop, first_block)
            first_block += -(-(stop - start) // self.height)


def _check(
    column: str,
    values: npt.NDArray[np.integer],
    limits: npt.NDArray[np.integer],
    uri: str,
    first_row: int,
) -> None:
    wrong = np.flatnonzero(values >= limits)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"{uri}: {column}[{first_row + row}] is {values[row]}; expected less than {limits[row]}: "
            "the bucket and the counts are not from the same run"
        )
