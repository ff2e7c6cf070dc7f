"""The tasks of an evaluation. Each reads one partition at most; a task whose worker is lost runs again.

    count_edges     edges of bucket files             read_edges   the edges to rank
    find_known      known edges and degrees, from pieces of bucket files
    take_rows       the ranked edges' vectors in one partition
    make_queries    queries of one side, and the edges' own scores
    count           better candidates in one partition, for ranges of queries

Memory of a task: a partition, the vectors of its queries, blocks of scores. Torch is imported in the tasks
that need it: the process that submits them does without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.ask.evaluate import baselines, known, work
from graphmill.ask.evaluate.baselines import Baselines
from graphmill.ask.evaluate.known import Piece
from graphmill.ask.evaluate.queries import READ_EDGES, Numbers, Queries, Slots, Triples
from graphmill.ask.run import TrainedRun
from graphmill.cluster import num_cores
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.display import progress
from graphmill.formats import edge_buckets
from graphmill.sorted_arrays import contains, distinct
from graphmill.storage import file_name
from graphmill.vocab import Bucket, Partition, Side

if TYPE_CHECKING:
    from torch import Tensor

    from graphmill.ask.evaluate.ranker import Ranker


@dataclass(frozen=True)
class Part:
    """Edges that are ranked together, and how.

    Attributes:
        folder: work folder of these edges.
        slots: slots of all entities.
        run: what has been trained.
        height: queries of a block.
        sharers: tasks that run at the same time on a machine, and share its cores.
        loopless: relations, ascending, in whose queries the entity that is asked about does not count.
    """

    folder: str
    slots: Slots
    run: TrainedRun
    height: int
    sharers: int
    loopless: tuple[int, ...] = ()

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.slots.config

    def edges(self) -> Triples:
        """The edges."""
        lhs, rel, rhs = work.load(self.folder, "edges", np.int64).reshape(3, -1)
        return Triples(lhs, rel, rhs)

    def queries(self, side: Side, edges: Triples) -> Queries:
        """The queries of one side of the edges."""
        return Queries(self.slots, side, edges, self.height)

    def asking_others(self, queries: Queries, rows: slice = slice(None)) -> Numbers:
        """The queries, among `rows`, in which the entity that is asked about does not count: [n]."""
        first = rows.start or 0
        return first + np.flatnonzero(contains(np.array(self.loopless, np.int64), queries.rel[rows]))

    def vectors(self, side: Side, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The vectors of some queries: [Q, D]."""
        dimension = max(self.config.entity_dimension(each) for each in self.slots.counts)
        return work.load(self.folder, f"queries-{side}", np.float32, dimension, start, stop)


class KnownFile(NamedTuple):
    """Result of a task: where the cells of each partition begin in its file, and degrees.

    `begins` has [P + 1] positions by side and type; `degrees` [2, n] numbers of entities and of their edges.
    """

    number: int
    begins: dict[Side, dict[str, Numbers]]
    degrees: Numbers


class Range(NamedTuple):
    """Queries start..stop of one side."""

    side: Side
    start: int
    stop: int


class CellSlice(NamedTuple):
    """Cells start..stop of a file of known cells."""

    side: Side
    number: int
    start: int
    stop: int


class Share(NamedTuple):
    """A task's share of all that is told of progress: from `first` on `size`, of `total` edges."""

    first: float
    size: float
    total: int


class Counted(NamedTuple):
    """Counts of the edges of one side from `start` on, in the order of their queries: [2, C].

    Candidates that score higher, and that score the same.
    """

    side: Side
    start: int
    counts: npt.NDArray[np.int32]


def count_edges(path: str, buckets: Sequence[Bucket]) -> list[int]:
    """Number of edges in each bucket file of a folder."""
    return list(edge_buckets.count_all(path, buckets).values())


def read_edges(slots: Slots, path: str, chosen: Sequence[tuple[Bucket, Numbers | None]]) -> Triples:
    """Chosen rows of bucket files, in ascending order (None: all); raises as `Slots.read_checked`."""
    return Triples.concatenated([part for each in chosen for part in _read(slots, path, *each)])


def find_known(part: Part, pieces: Sequence[Piece], number: int) -> KnownFile:
    """Find the known edges that have a ranked query, and write their cells; raises as `known.scan`."""
    edges = part.edges()
    queries = {side: part.queries(side, edges) for side in Side}
    found = known.scan(part.slots, edges, queries, pieces)
    begins: dict[Side, dict[str, Numbers]] = {}
    for side, cells in found.cells.items():
        work.save(part.folder, f"known-{side}-{number}", cells)
        first = part.slots.first.items()
        begins[side] = {name: np.searchsorted(cells, each * len(queries[side])) for name, each in first}
    entity = np.flatnonzero(found.degrees)
    return KnownFile(number, begins, np.stack([entity, found.degrees[entity]]))


def endpoint_rows(slots: Slots, edges: Triples) -> dict[PartitionKey, Numbers]:
    """The rows of each partition that are ends of edges, sorted."""
    found: dict[PartitionKey, list[Numbers]] = {}
    for side in Side:
        for entity_type, partition, _, index in slots.visits(side, edges.rel, edges.slots(side)):
            found.setdefault((entity_type, partition), []).append(index)
    return {key: distinct(np.concatenate(rows)) for key, rows in found.items()}


def take_rows(part: Part, key: PartitionKey) -> None:
    """Write the ranked edges' vectors of one partition; raises FormatError if its file is damaged."""
    rows = endpoint_rows(part.slots, part.edges())[key]
    work.save(part.folder, _rows_name(*key), table_of(part, key).numpy()[rows])


def make_queries(part: Part, side: Side) -> None:
    """Write the queries of one side, and the edges' own scores."""
    from torch import from_numpy

    from graphmill.ask.evaluate import ranker
    from graphmill.cluster.runtime import cpu_threads

    edges = part.edges()
    rows = endpoint_rows(part.slots, edges)

    def take(entity_type: str, partition: Partition, index: Numbers) -> Tensor:
        dimension = part.config.entity_dimension(entity_type)
        table = work.load(part.folder, _rows_name(entity_type, partition), np.float32, dimension)
        return from_numpy(table[np.searchsorted(rows[entity_type, partition], index)])

    with cpu_threads(1):
        vectors_QD, score_E = ranker.prepare(ranker_of(part), part.queries(side, edges), take)
    work.save(part.folder, f"queries-{side}", vectors_QD.numpy())
    work.save(part.folder, f"own-{side}", score_E.numpy())


def count(
    part: Part, key: PartitionKey, ranges: Sequence[Range], slices: Sequence[CellSlice], share: Share
) -> list[Counted]:
    """Count the candidates of a partition that score higher than the edges, and those that score the same."""
    from torch import from_numpy

    from graphmill.ask.evaluate.ranking import Counting
    from graphmill.cluster.runtime import cpu_threads

    edges, ranker, table = part.edges(), ranker_of(part), table_of(part, key)
    queries = {each.side: part.queries(each.side, edges) for each in ranges}
    num_queries = sum(stop - start for _, start, stop in ranges)
    counted, num_done = [], 0
    for side, start, stop in ranges:
        known_cells = known_cells_of(
            part, queries[side], slice(start, stop), [s for s in slices if s.side == side]
        )
        first, last = np.searchsorted(queries[side].of_edge, [start, stop]).tolist()
        own_E = work.load(part.folder, f"own-{side}", np.float64, 1, first, last).reshape(-1)
        vectors_QD = from_numpy(part.vectors(side, start, stop))
        counting = Counting(
            ranker,
            queries[side],
            slice(start, stop),
            vectors_QD,
            from_numpy(own_E),
            known_cells,
        )

        def report(done: int, before: int = num_done) -> None:
            of_all = (before + done / max(len(table), 1)) / num_queries
            progress.report("evaluate", share.first + share.size * of_all, share.total, "edges")

        with cpu_threads(1):
            counting.add(*key, table, report)
        counted.append(Counted(side, first, counting.counts().astype(np.int32)))
        num_done += stop - start
    return counted


def rank_plainly(part: Part, side: Side, numbers: Sequence[int], trained_paths: Sequence[str]) -> Baselines:
    """Rank one side of the edges without the model; `numbers` are those of the files of known cells."""
    edges = part.edges()
    queries = part.queries(side, edges)
    found = [work.load(part.folder, f"known-{side}-{number}", np.int64) for number in numbers]
    others = part.asking_others(queries)
    found.append(queries.slots[others, None] * len(queries) + others[:, None])
    slot_K, query_K = np.divmod(distinct(np.concatenate(found).reshape(-1), overwrite=True), len(queries))
    return baselines.rank(queries, edges, np.sort(query_K * part.slots.end + slot_K), trained_paths)


def known_cells_of(part: Part, queries: Queries, rows: slice, slices: Sequence[CellSlice]) -> Numbers:
    """The cells of a range of queries that do not count, known or their own, sorted and distinct."""
    others = part.asking_others(queries, rows)
    found = [queries.cells(others, queries.slots[others])]
    for side, number, start, stop in slices:
        cells = work.load(part.folder, f"known-{side}-{number}", np.int64, 1, start, stop).reshape(-1)
        slot_K, query_K = np.divmod(cells, len(queries))
        is_mine_K = (query_K >= rows.start) & (query_K < rows.stop)
        found.append(queries.cells(query_K[is_mine_K], slot_K[is_mine_K]))
    return distinct(np.concatenate(found), overwrite=True)


def _read(slots: Slots, path: str, bucket: Bucket, rows: Numbers | None) -> Iterator[Triples]:
    if rows is None:
        yield from slots.read_bucket(path, bucket)
        return
    for number in np.unique(rows // READ_EDGES).tolist():
        start = number * READ_EDGES
        own = rows[(rows >= start) & (rows < start + READ_EDGES)] - start
        for edges in slots.read_bucket(path, bucket, start, start + int(own[-1]) + 1):
            yield Triples(edges.lhs[own], edges.rel[own], edges.rhs[own])


def _rows_name(entity_type: str, partition: Partition) -> str:
    return f"rows-{file_name(entity_type)}-{partition}"


def table_of(part: Part, key: PartitionKey) -> Tensor:
    """The embeddings of a partition; raises FormatError if its file is damaged."""
    from torch import from_numpy

    return from_numpy(part.run.read_embeddings(key))


def ranker_of(part: Part) -> Ranker:
    """The model, and means to rank with it."""
    from graphmill.ask.evaluate import ranker
    from graphmill.gpu.device import device_of

    device = device_of(part.config.num_gpus)
    num_threads = max(1, (part.config.workers or num_cores()) // part.sharers)
    fused = ranker.can_rank(part.config, device)
    return ranker.Ranker(part.run.load_model().to(device), device, num_threads=num_threads, fused=fused)
