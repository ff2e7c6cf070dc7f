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
from graphmill.ask.predict.sizes import WIDTH
from graphmill.ask.relation import Relation
from graphmill.config import Config
from graphmill.formats import edge_buckets
from graphmill.sorted_arrays import contains, distinct, positions
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


class Codes:
    """Distinct numbers that come in pieces.

    Pieces wait until they are as many as the numbers before them: so each number is sorted a few times only.
    """

    def __init__(self) -> None:
        self._merged = np.empty(0, np.int64)
        self._waiting: list[Numbers] = []
        self._num_waiting = 0

    def add(self, piece: Numbers) -> None:
        """Add numbers, of which some may be there already."""
        self._waiting.append(piece)
        self._num_waiting += len(piece)
        if self._num_waiting > len(self._merged):
            self.merged()

    def exceed(self, most: int) -> bool:
        """Tell whether there are more than `most`."""
        return len(self._merged) + self._num_waiting > most and len(self.merged()) > most

    def merged(self) -> Numbers:
        """All of them, ascending."""
        if self._waiting:
            self._set(distinct(np.concatenate([self._merged, *self._waiting]), overwrite=True))
        return self._merged

    def cut(self, stop: int) -> None:
        """Drop those from `stop` on."""
        self._set(self.merged()[: np.searchsorted(self.merged(), stop)])

    def _set(self, numbers: Numbers) -> None:
        self._merged, self._waiting, self._num_waiting = numbers, [], 0


class KnownRange:
    """The known edges of some queries, of the candidates in rows start..stop of a partition."""

    def __init__(self, codes: Numbers, num_queries: int, start: int, stop: int) -> None:
        """`codes` are row x number of queries + query; they ascend."""
        self.codes, self._num_queries, self.start, self.stop = codes, num_queries, start, stop

    @classmethod
    def read(
        cls, parts: Iterator[tuple[Numbers, Numbers]], num_queries: int, start: int, num_rows: int, most: int
    ) -> "KnownRange":
        """Read edges from row `start` on, of as many candidates as hold `most` edges, at least WIDTH."""
        codes, stop = Codes(), num_rows
        for query, row in parts:
            mine = (row >= start) & (row < stop)
            if not mine.any():
                continue
            codes.add(row[mine] * num_queries + query[mine])
            while codes.exceed(most) and stop - start > WIDTH:
                stop = start + max(1, (stop - start) // 2 // WIDTH) * WIDTH
                codes.cut(stop * num_queries)
        return cls(codes.merged(), num_queries, start, stop)

    def within(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """Queries, which ascend, and rows of the known edges of the candidates in rows start..stop."""
        first, last = np.searchsorted(self.codes, [start * self._num_queries, stop * self._num_queries])
        row, query = np.divmod(self.codes[first:last], max(self._num_queries, 1))
        order = np.argsort(query, kind="stable")
        return query[order], row[order]

    def has(self, query: Numbers, row: Numbers) -> npt.NDArray[np.bool_]:
        """Whether pairs of a query and a candidate's row are known edges."""
        return contains(self.codes, row * self._num_queries + query)
