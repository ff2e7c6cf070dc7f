"""Candidates that are no answers: known edges, from bucket files, and the id that is asked about itself.

As many are held at a time as memory allows.

A bucket is read once for each part of its candidates whose known edges fit in memory together.

Shapes: K known edges, Q queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import known_paths
from graphmill.ask.entities import EntityTable
from graphmill.ask.relation import Relation
from graphmill.config import Config
from graphmill.formats import edge_buckets
from graphmill.sorted_arrays import positions
from graphmill.vocab import Bucket, Side

READ_EDGES = 1 << 19

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KnownEdges:
    """Places of the known edges of a relation: folders of buckets, and the grid of buckets."""

    folders: tuple[str, ...]
    relation: int
    side: Side
    grid: dict[Side, int]

    @classmethod
    def of_run(cls, config: Config, relation: Relation, side: Side) -> "KnownEdges":
        """All splits: the folders of training, and the folders of buckets beside them."""
        grid = {each: config.num_side_partitions(each) for each in Side}
        return cls(tuple(known_paths(config)), relation.number, side, grid)

    def read(
        self, queries: EntityTable, numbers: Numbers, candidates: EntityTable, partition: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Read edges between queries and the candidates of a partition: query [K], row of the candidate [K].

        `numbers` are those of the queries' entities; they ascend.
        """
        bounds = np.searchsorted(numbers, queries.first).tolist()
        for own, (start, stop) in enumerate(pairwise(bounds)):
            if start == stop:
                continue
            rows = numbers[start:stop] - queries.first[own]
            for folder, bucket in product(self.folders, self._buckets(queries, own, candidates, partition)):
                for ends in self._ends(folder, bucket):
                    place = _places(rows, ends[0])
                    mine = place >= 0
                    yield place[mine] + start, ends[1][mine]

    def _buckets(
        self, queries: EntityTable, own: int, candidates: EntityTable, partition: int
    ) -> Iterator[Bucket]:
        """The edges of a type with one partition are in all buckets."""
        places: dict[Side, Sequence[int]] = {}
        for side, table, number in ((self.side, candidates, partition), (self.side.other, queries, own)):
            places[side] = [number] if len(table.parts) > 1 else range(self.grid[side])
        return (Bucket(*each) for each in product(places[Side.LHS], places[Side.RHS]))

    def _ends(self, folder: str, bucket: Bucket) -> Iterator[tuple[Numbers, Numbers]]:
        """The queries' rows and the candidates' rows of the relation's edges, some at a time."""
        for start in range(0, edge_buckets.count_edges(folder, bucket), READ_EDGES):
            edges = edge_buckets.read_bucket(folder, bucket, start, start + READ_EDGES, takes_features=True)
            mine = edges.rel == self.relation
            lhs, rhs = edges.lhs[mine].astype(np.int64), edges.rhs[mine].astype(np.int64)
            yield (lhs, rhs) if self.side is Side.RHS else (rhs, lhs)


@dataclass(frozen=True)
class LeftOut:
    """Candidates that are no answers, as edges from queries.

    Attributes:
        edges: known edges; None: they are answers too.
        itself: the id that is asked about; both tables are of one type.
    """

    edges: KnownEdges | None = None
    itself: bool = False

    def __bool__(self) -> bool:
        return self.itself or self.edges is not None

    def read(
        self, queries: EntityTable, numbers: Numbers, candidates: EntityTable, partition: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Read what is left out of a partition, some of it twice: query [K], row of the candidate [K]."""
        if self.itself:
            start, stop = np.searchsorted(numbers, candidates.first[partition : partition + 2])
            yield np.arange(start, stop), numbers[start:stop] - candidates.first[partition]
        if self.edges is not None:
            yield from self.edges.read(queries, numbers, candidates, partition)


def _places(rows: Numbers, wanted: Numbers) -> Numbers:
    """The places of wanted rows among distinct ones, -1 for others; in a range without a search."""
    if rows[-1] - rows[0] >= len(rows):
        return positions(rows, wanted)
    place = wanted - rows[0]
    return np.where((place >= 0) & (place < len(rows)), place, -1)
