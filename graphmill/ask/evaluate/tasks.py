"""The tasks of an evaluation. Each reads one partition at most; a task whose worker is lost runs again.

    read_edges      the edges to rank
    find_known      known edges and degrees, from pieces of bucket files
    take_rows       the ranked edges' vectors in one partition
    make_queries    queries of one side, and the edges' own scores
    count           better candidates in one partition, for ranges of queries

Memory of a task: a partition, the vectors of its queries, blocks of scores. Torch is imported in the tasks
that need it: the process that submits them does without.

Arrays for later tasks are files in a work folder, without headers:

{work folder}/{part of the edges}/
    edges           int64 [3, E]: lhs, rel, rhs by number, in the order of the split
    known-{side}-{task}     int64 [K]: known cells, sorted (`find_known`)
    rows-{type}-{partition} float32 [n, D]: vectors of the ranked edges' entities, by row
    queries-{side}  float32 [Q, D]         own-{side}  float64 [E]: scores of the edges themselves
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.edges import READ_EDGES, Graph, Numbers, Piece, Triples, edges_of
from graphmill.ask.evaluate import baselines
from graphmill.ask.evaluate.baselines import Baselines, Neighbors
from graphmill.ask.evaluate.queries import BlockSize, Queries
from graphmill.ask.run import TrainedRun
from graphmill.cluster import num_cores
from graphmill.config.partitions import PartitionKey, all_buckets
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.sorted_arrays import contains, distinct
from graphmill.storage import file_name
from graphmill.vocab import Bucket, Partition, Side

if TYPE_CHECKING:
    from torch import Tensor

    from graphmill.ask.evaluate.ranking import Ranker


def save(folder: str, name: str, array: npt.NDArray[np.generic]) -> None:
    """Write an array; a task that runs twice writes the same bytes."""
    with storage.atomic_output(storage.join(folder, name)) as stream:
        stream.write(np.ascontiguousarray(array).data)


def load(
    folder: str, name: str, dtype: npt.DTypeLike, columns: int = 1, start: int = 0, stop: int | None = None
) -> npt.NDArray[Any]:
    """Rows start..stop (None: to the end) of an array with so many columns: [n, columns]."""
    with storage.open_input(storage.join(folder, name)) as stream:
        row_bytes = columns * np.dtype(dtype).itemsize
        end = stream.size() // row_bytes if stop is None else stop
        rows = np.empty((end - start, columns), dtype)
        stream.seek(start * row_bytes)
        if rows.size and (size := stream.readinto(rows.reshape(-1).view(np.uint8))) != rows.nbytes:
            raise FormatError(f"{storage.join(folder, name)}: expected {rows.nbytes} bytes, found {size}")
    return rows


@dataclass(frozen=True)
class Part:
    """Edges that are ranked together, and how.

    Attributes:
        folder: work folder of these edges.
        graph: numbers of all entities.
        run: what has been trained.
        block: size of a block of scores.
        sharers: tasks that run at the same time on a machine, and share its cores.
        loopless: relations, ascending, in whose queries the entity that is asked about does not count.
    """

    folder: str
    graph: Graph
    run: TrainedRun
    block: BlockSize
    sharers: int
    loopless: tuple[int, ...]

    def edges(self) -> Triples:
        """The edges."""
        lhs, rel, rhs = load(self.folder, "edges", np.int64).reshape(3, -1)
        return Triples(lhs, rel, rhs)

    def queries(self, side: Side, edges: Triples) -> Queries:
        """The queries of one side of the edges."""
        return Queries(self.graph, side, edges, self.block)

    def vectors(self, side: Side, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The vectors of some queries: [Q, D]."""
        dimension = max(self.graph.config.entity_dimension(name) for name in self.graph.counts)
        return load(self.folder, f"queries-{side}", np.float32, dimension, start, stop)


class KnownFile(NamedTuple):
    """Result of a task: where the cells of each partition begin in its file, and degrees.

    `begins` has [P + 1] positions by side and type; `degrees` [2, n] places of entities, and their edges.
    """

    number: int
    begins: dict[Side, dict[str, Numbers]]
    degrees: Numbers


Range = tuple[Side, int, int]
"""Queries start..stop of one side."""
CellSlice = tuple[Side, int, int, int | None]
"""The file of known cells of a side and a task, by its number; cells start..stop (None: to the end)."""
Counted = tuple[Side, int, npt.NDArray[np.int32]]
"""Counts of the edges of one side from the second on, in the order of their queries: [2, C].

Candidates that score higher, and that score the same.
"""


class Share(NamedTuple):
    """A task's share of all that is told of progress: from `first` on `size`, of `total` edges."""

    first: float
    size: float
    total: int


def read_edges(graph: Graph, path: str, chosen: Sequence[tuple[Bucket, Numbers | None]]) -> Triples:
    """Chosen rows of bucket files, in ascending order (None: all)."""
    return Triples.concatenated([part for piece in chosen for part in _read(graph, path, *piece)])


def find_known(part: Part, pieces: Sequence[Piece], number: int) -> KnownFile:
    """Find the known edges that have a ranked query, and write their cells.

    Sorted, the cells of a partition are a range.
    """
    edges = part.edges()
    queries = {side: part.queries(side, edges) for side in Side}
    rows = part.graph.rows_of(edges)
    degrees = np.zeros(sum(map(len, rows.values())), np.int64)
    cells_of: dict[Side, list[Numbers]] = {side: [np.empty(0, np.int64)] for side in Side}
    for piece, other, place_H, of_rows in edges_of(part.graph, rows, pieces):
        if piece.is_trained:
            degrees += np.bincount(place_H, minlength=len(degrees))
        if piece.is_known:
            own = queries[side := other.other]
            query_H = own.find(of_rows.rel, of_rows.ends(other))
            cells_of[side].append((of_rows.ends(side) * len(own) + query_H)[query_H >= 0])
    begins: dict[Side, dict[str, Numbers]] = {}
    for side, parts in cells_of.items():
        cells = distinct(np.concatenate(parts), overwrite=True)
        save(part.folder, f"known-{side}-{number}", cells)
        first = part.graph.first.items()
        begins[side] = {name: np.searchsorted(cells, start * len(queries[side])) for name, start in first}
    place = np.flatnonzero(degrees)
    return KnownFile(number, begins, np.stack([place, degrees[place]]))


def take_rows(part: Part, key: PartitionKey) -> None:
    """Write the ranked edges' vectors of one partition."""
    rows = part.graph.rows_of(part.edges())[key]
    save(part.folder, _rows_name(*key), part.run.read_embeddings(key)[rows])


def make_queries(part: Part, side: Side) -> None:
    """Write the queries of one side, and the edges' own scores."""
    from torch import from_numpy

    from graphmill.ask.evaluate import ranking
    from graphmill.cluster.runtime import cpu_threads

    edges = part.edges()
    rows = part.graph.rows_of(edges)

    def take(entity_type: str, partition: Partition, index: Numbers) -> Tensor:
        dimension = part.graph.config.entity_dimension(entity_type)
        table = load(part.folder, _rows_name(entity_type, partition), np.float32, dimension)
        return from_numpy(table[np.searchsorted(rows[entity_type, partition], index)])

    with cpu_threads(1):
        vectors_QD, score_E = ranking.prepare(ranker_of(part), part.queries(side, edges), take)
    save(part.folder, f"queries-{side}", vectors_QD.numpy())
    save(part.folder, f"own-{side}", score_E.numpy())


def count(
    part: Part, key: PartitionKey, ranges: Sequence[Range], slices: Sequence[CellSlice], share: Share
) -> list[Counted]:
    """Count the candidates of a partition that score higher than the edges, and those that score the same."""
    from torch import from_numpy

    from graphmill.ask.evaluate.ranking import Counting
    from graphmill.cluster.runtime import cpu_threads

    edges, ranker, table = part.edges(), ranker_of(part), from_numpy(part.run.read_embeddings(key))
    queries = {side: part.queries(side, edges) for side, _, _ in ranges}
    num_queries = sum(stop - start for _, start, stop in ranges)
    counted: list[Counted] = []
    num_done = 0
    for side, start, stop in ranges:
        of_side, rows = queries[side], slice(start, stop)
        known_cells = cells_left_out(part, of_side, rows, slices)
        first, last = np.searchsorted(of_side.of_edge, [start, stop]).tolist()
        own_E = from_numpy(load(part.folder, f"own-{side}", np.float64, 1, first, last).reshape(-1))
        vectors_QD = from_numpy(part.vectors(side, start, stop))
        counting = Counting(ranker, of_side, rows, vectors_QD, own_E, known_cells)

        def report(done: int, before: int = num_done) -> None:
            of_all = (before + done / max(len(table), 1)) / num_queries
            progress.report("evaluate", share.first + share.size * of_all, share.total, "edges")

        with cpu_threads(1):
            counting.add(*key, table, report)
        counted.append((side, first, counting.counts().astype(np.int32)))
        num_done += stop - start
    return counted


def rank_plainly(
    part: Part, side: Side, numbers: Sequence[int], trained_paths: Sequence[str], sample: Numbers
) -> Baselines:
    """Rank one side of the edges without the model, and those of a sample by neighbors.

    `numbers` are those of the files of known cells.
    """
    edges = part.edges()
    queries = part.queries(side, edges)
    slices = [(side, number, 0, None) for number in numbers]
    cells = cells_left_out(part, queries, slice(0, len(queries)), slices)
    number_K, query_K = np.divmod(cells, len(queries))
    known = np.sort(query_K * part.graph.end + number_K)
    simple = baselines.rank(queries, edges, known, trained_paths)
    if not len(sample):
        return simple
    pieces = (Piece(path, bucket) for path in trained_paths for bucket in all_buckets(part.graph.config))
    trained = Triples.concatenated([some for piece in pieces for some in part.graph.read(piece)])
    return replace(simple, near=Neighbors(part.graph, trained).rank(queries, edges[sample], known))


def cells_left_out(part: Part, queries: Queries, rows: slice, slices: Sequence[CellSlice]) -> Numbers:
    """The cells of a range of queries that do not count, known or their own, sorted and distinct."""
    others = rows.start + np.flatnonzero(contains(np.array(part.loopless, np.int64), queries.rel[rows]))
    parts = [queries.ends[others] * len(queries) + others]
    for side, number, start, stop in slices:
        if side is queries.side:
            cells = load(part.folder, f"known-{side}-{number}", np.int64, 1, start, stop).reshape(-1)
            query_K = cells % len(queries)
            parts.append(cells[(query_K >= rows.start) & (query_K < rows.stop)])
    return distinct(np.concatenate(parts), overwrite=True)


def _read(graph: Graph, path: str, bucket: Bucket, rows: Numbers | None) -> Iterator[Triples]:
    if rows is None:
        yield from graph.read(Piece(path, bucket))
        return
    for number in np.unique(rows // READ_EDGES).tolist():
        start = number * READ_EDGES
        own = rows[(rows >= start) & (rows < start + READ_EDGES)] - start
        for edges in graph.read(Piece(path, bucket, start, start + int(own[-1]) + 1)):
            yield edges[own]


def _rows_name(entity_type: str, partition: Partition) -> str:
    return f"rows-{file_name(entity_type)}-{partition}"


def ranker_of(part: Part) -> Ranker:
    """The model, and means to rank with it."""
    from graphmill.ask.evaluate import ranking
    from graphmill.gpu.device import device_of

    device = device_of(part.graph.config.num_gpus)
    num_threads = max(1, (part.graph.config.workers or num_cores()) // part.sharers)
    fused = ranking.can_rank(part.graph.config, device)
    return ranking.Ranker(part.run.load_model().to(device), device, num_threads=num_threads, fused=fused)
