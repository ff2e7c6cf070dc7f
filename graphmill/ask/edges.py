"""Edges of a run: numbers of their ends, edges of some rows, degrees; relations in which no edge is a loop.

The number of an entity counts through all partitions of its type: rows of the partitions before, plus its
row. If no training edge of a relation is a loop, from an entity to itself, no id is an answer to itself.

Of a billion edges few have an end among some rows. A table over the rows of a partition gives the place by
the row, so one look-up dismisses almost all edges.

Shapes: E edges, H edges of rows that are asked of, R relations in the configuration, P partitions of a type.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets, key_of, rows_of, type_there
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.files import read_loops
from graphmill.sorted_arrays import distinct, positions
from graphmill.vocab import Bucket, Partition, Side

Numbers = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]
Rows = Mapping[PartitionKey, Numbers]
"""Ascending rows of partitions. The place of a row counts through all of them, in the order of the keys."""

READ_EDGES = 1 << 20  # at a time

TABLE_ROWS = 1 << 22  # of a partition; a table of more rows pays where many of them are asked of
TABLE_SHARE = 4096
_MOST = int(np.iinfo(np.int64).max)
_NUM_READING = 16  # threads, which wait for HDFS

log = logging.getLogger("graphmill")


class Piece(NamedTuple):
    """Rows start..stop of a bucket file (None: to the end), and whether they are known, and trained on."""

    path: str
    bucket: Bucket
    start: int = 0
    stop: int | None = None
    is_known: bool = True
    is_trained: bool = True


@dataclass(frozen=True, eq=False)
class Triples:
    """Edges whose sides are numbers of entities, [E] each; without weights, all are 1."""

    lhs: Numbers
    rel: Numbers
    rhs: Numbers
    weight: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.rel)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_] | Numbers) -> "Triples":
        weight = None if self.weight is None else self.weight[rows]
        return Triples(self.lhs[rows], self.rel[rows], self.rhs[rows], weight)

    def ends(self, side: Side) -> Numbers:
        """The entities of one side."""
        return self.lhs if side is Side.LHS else self.rhs

    def weights(self) -> npt.NDArray[np.float32]:
        """The weights."""
        return np.ones(len(self), np.float32) if self.weight is None else self.weight

    @classmethod
    def concatenated(cls, parts: Sequence["Triples"]) -> "Triples":
        """All edges of all parts; with weights if a part has them."""
        none, names = np.empty(0, np.int64), ("lhs", "rel", "rhs")
        lhs, rel, rhs = (np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in names)
        is_plain = all(part.weight is None for part in parts)
        weight = None if is_plain else np.concatenate([part.weights() for part in parts])
        return cls(lhs, rel, rhs, weight)


class RowEdges(NamedTuple):
    """Edges of a piece with an end among rows that are asked of: its side, its place, and the edges, [H]."""

    piece: Piece
    side: Side
    place_H: Numbers
    edges: Triples


class Graph:
    """The entities of some types, by number, and the relations between them.

    Attributes:
        counts: rows of each partition of each type. An end of another type has its row as number.
        first: by type, number of the first entity of each partition, and number of all entities, [P + 1].
        end: all numbers are smaller.
    """

    def __init__(
        self, config: Config, counts: Mapping[str, Sequence[int]], num_relations: int | None = None
    ) -> None:
        self.config, self.counts = config, counts
        most = _MOST if config.dynamic_relations else len(config.relations)
        self.num_relations = most if num_relations is None else num_relations
        self._limits = {name: counts.get(name, [_MOST] * num) for name, num in config.num_partitions.items()}
        self.first = {name: np.cumsum([0, *rows]) for name, rows in counts.items()}
        self.end = max(int(first[-1]) for first in self.first.values())

    def static(self, rel: Integers) -> Integers:
        """Positions in the configuration's list of relations."""
        return np.zeros_like(rel) if self.config.dynamic_relations else rel

    def types(self, side: Side) -> list[str]:
        """Entity types on one side of the relations in the configuration's list."""
        return [relation.entity_type(side) for relation in self.config.relations]

    def firsts(self, side: Side, bucket: Bucket) -> Numbers:
        """First number of each static relation's partition, on one side of a bucket: [R]."""
        keys = [key_of(self.config, name, side, bucket) for name in self.types(side)]
        return np.array([self.first[name][part] if name in self.first else 0 for name, part in keys])

    def numbered(self, bucket: Bucket, edges: edge_buckets.Edges, rows: slice | Numbers) -> Triples:
        """Some edges of a bucket, by the numbers of their ends."""
        rel = edges.rel[rows].astype(np.int64, copy=False)
        at = self.static(rel)
        lhs, rhs = (self.firsts(side, bucket)[at] + getattr(edges, side.value)[rows] for side in Side)
        return Triples(lhs, rel, rhs, None if edges.weight is None else edges.weight[rows])

    def read(self, piece: Piece, *, takes_features: bool = False) -> Iterator[Triples]:
        """Read the edges of a piece by number, at most READ_EDGES at a time."""
        for edges in self.read_rows(piece, takes_features=takes_features):
            yield self.numbered(piece.bucket, edges, slice(None))

    def read_rows(self, piece: Piece, *, takes_features: bool = False) -> Iterator[edge_buckets.Edges]:
        """Read the edges of a piece as they are there, checked, at most READ_EDGES at a time."""
        path, bucket, start, stop, *_ = piece
        uri = edge_buckets.bucket_uri(path, bucket)
        limits = rows_of(self.config, self._limits, bucket)
        own = limits[Side.LHS], limits[Side.RHS], self.num_relations
        stop = _MOST if stop is None else stop
        for first in range(start, stop, READ_EDGES):
            last = min(first + READ_EDGES, stop)
            edges = edge_buckets.read_bucket(path, bucket, first, last, takes_features=takes_features)
            edge_buckets.check_indices(edges, uri, *own, first, partial(type_there, self.config))
            yield edges
            if len(edges) < READ_EDGES:
                return

    def visits(
        self, side: Side, rel: Numbers, numbers: Numbers
    ) -> Iterator[tuple[str, Partition, Numbers, Numbers]]:
        """Partitions of entities, each once: type, partition, positions in `numbers`, rows."""
        relation, types = self.static(rel), np.array(self.types(side))
        for entity_type in dict.fromkeys(types.tolist()):
            chosen = np.flatnonzero((types == entity_type)[relation])
            first = self.first[entity_type]
            partitions = np.searchsorted(first, numbers[chosen], side="right") - 1
            for partition in np.unique(partitions).tolist():
                own = chosen[partitions == partition]
                yield entity_type, partition, own, numbers[own] - first[partition]

    def rows_of(self, edges: Triples) -> dict[PartitionKey, Numbers]:
        """The rows that are ends of edges."""
        by_partition: dict[PartitionKey, list[Numbers]] = {}
        for side in Side:
            for entity_type, partition, _, rows in self.visits(side, edges.rel, edges.ends(side)):
                by_partition.setdefault((entity_type, partition), []).append(rows)
        return {key: distinct(np.concatenate(rows)) for key, rows in by_partition.items()}

    def places_of(self, rows: Rows, side: Side, edges: Triples) -> Numbers:
        """The place of each edge's end among rows that have all of them, [E]."""
        place_E, begins = np.empty(len(edges), np.int64), _begins(rows)
        for entity_type, partition, own, row in self.visits(side, edges.rel, edges.ends(side)):
            key = entity_type, partition
            place_E[own] = begins[key] + np.searchsorted(rows[key], row)
        return place_E


def pieces_of(
    config: Config, paths: Iterable[str], key: PartitionKey, sides: Iterable[Side] = Side
) -> list[Piece]:
    """List the bucket files that have edges of a partition, on some sides."""
    buckets = [
        bucket
        for bucket in all_buckets(config)
        if any(key_of(config, key[0], side, bucket) == key for side in sides)
    ]
    return [Piece(path, bucket) for path in paths for bucket in buckets]


def edges_of(
    graph: Graph,
    rows: Rows,
    pieces: Iterable[Piece],
    sides: Iterable[Side] = Side,
    *,
    relation: int | None = None,
    takes_features: bool = False,
) -> Iterator[RowEdges]:
    """Read the edges, of one relation or all, with an end among some rows; one with both ends comes twice.

    Memory: READ_EDGES edges, and tables over the partitions of a bucket.
    """
    begins = _begins(rows)
    lookups: dict[PartitionKey, Callable[[Numbers], Integers]] = {}
    for piece in pieces:
        wanted = []
        for side in sides:
            types = np.array(graph.types(side))
            for entity_type in dict.fromkeys(types.tolist()):
                key = key_of(graph.config, entity_type, side, piece.bucket)
                if len(rows.get(key, ())):
                    wanted.append((side, key, types == entity_type))
        if not wanted:
            continue
        lookups = {
            key: lookups.get(key) or _lookup(rows[key], graph.counts[key[0]][key[1]]) for _, key, _ in wanted
        }
        for edges in graph.read_rows(piece, takes_features=takes_features):
            for side, key, is_own_R in wanted:
                own_E: slice | Numbers = slice(None)
                if relation is not None:
                    own_E = np.flatnonzero((edges.rel == relation) & is_own_R[graph.static(edges.rel)])
                elif not is_own_R.all():
                    own_E = np.flatnonzero(is_own_R[graph.static(edges.rel)])
                place_E = lookups[key](getattr(edges, side.value)[own_E])
                hit_H = np.flatnonzero(place_E >= 0)
                at_H = hit_H if isinstance(own_E, slice) else own_E[hit_H]
                own_edges = graph.numbered(piece.bucket, edges, at_H)
                yield RowEdges(piece, side, place_E[hit_H] + np.int64(begins[key]), own_edges)


def degrees_of(graph: Graph, rows: Rows, pieces: Iterable[Piece]) -> Numbers:
    """Count the edges of each row, by its place; those of files that are gone count nothing."""
    degrees = np.zeros(sum(map(len, rows.values())), np.int64)
    there = (piece for piece in pieces if storage.exists(edge_buckets.bucket_uri(*piece[:2])))
    for row_edges in edges_of(graph, rows, there, takes_features=True):
        degrees += np.bincount(row_edges.place_H, minlength=len(degrees))
    return degrees


def _begins(rows: Rows) -> dict[PartitionKey, int]:
    return dict(zip(rows, accumulate(map(len, rows.values()), initial=0), strict=False))


def _lookup(rows: Numbers, num_rows: int) -> Callable[[Numbers], Integers]:
    """Make what finds the places of rows of a partition, -1 for others and for a row -1."""
    if rows[-1] - rows[0] < len(rows):
        return lambda row: np.where((row >= rows[0]) & (row <= rows[-1]), row - rows[0], -1)
    if num_rows > max(TABLE_ROWS, TABLE_SHARE * len(rows)):
        return partial(positions, rows)
    table = np.full(num_rows + 1, -1, np.int32)
    table[rows] = np.arange(len(rows))
    return lambda row: table[row]


def known_paths(config: Config) -> list[str]:
    """Folders of the edges of all splits."""
    paths = [*config.edge_paths, *edge_buckets.folders(config.edge_root, config.entity_path)]
    return list(dict.fromkeys(path.rstrip("/") for path in paths))


def loopless(config: Config, numbers: Iterable[int]) -> tuple[int, ...]:
    """Choose relations by number: those of one type on both sides of which no training edge is a loop."""
    num_partitions = {
        number: config.entities[entry.lhs].num_partitions
        for number in numbers
        if (entry := config.entry(number)).lhs == entry.rhs
    }
    if not num_partitions:
        return ()
    paths = [path for path in config.edge_paths if storage.is_dir(path)]
    if not paths:
        log.warning("%s: there are no training edges: no id is its own answer", config.edge_paths[0])
    is_anywhere = 1 in num_partitions.values()  # edges of a type with one partition are in all buckets
    buckets = [bucket for bucket in all_buckets(config) if is_anywhere or bucket.lhs == bucket.rhs]
    with_loops: set[int] = set()
    with ThreadPoolExecutor(_NUM_READING) as pool:
        for path in paths:
            for bucket, relations in zip(buckets, pool.map(partial(read_loops, path), buckets), strict=True):
                has_diagonal = bucket.lhs == bucket.rhs
                with_loops |= {
                    relation for relation in relations if has_diagonal or num_partitions.get(relation) == 1
                }
    return tuple(sorted(num_partitions.keys() - with_loops))
