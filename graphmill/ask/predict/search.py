"""The question of a command to a trained run: how its queries are made, what is no answer, sizes of blocks.

The memory of a task stays below a limit, whatever the input.

Shapes: U distinct entities that are asked about, N candidates, D dimension, K pairs that are left out.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from graphmill.ask.edges import Graph, Numbers, edges_of, pieces_of
from graphmill.ask.entities import EntityTable
from graphmill.ask.predict.lists import Lists
from graphmill.ask.relation import Relation
from graphmill.ask.scan import HEIGHT, WIDTH, Answers, Pairs, Scan, TopK, made
from graphmill.checkpoints import Floats
from graphmill.errors import ConfigError
from graphmill.model.calibration import NUM_BEST, Scale
from graphmill.vocab import Side

PRODUCTS = 1 << 38
"""Multiplications of a task, roughly: some seconds of work, so that all workers get some."""
GPU_PRODUCTS = 1 << 47
"""The same on a GPU."""
UNLIMITED = 1 << 62
"""No limit but memory."""
FEWEST_QUERIES = 8 * HEIGHT  # a task reads all candidates
MOST_PAIRS = 1 << 20
_ID_BYTES = 100  # a raw id and its place, roughly


@dataclass(frozen=True)
class Sizes:
    """Sizes of the blocks of a task.

    Attributes:
        queries: queries of a task, which are a file of the output.
        candidate_rows: candidates that are read at a time, a multiple of WIDTH.
        known_edges: known edges that are held at a time.
        pairs: pairs of a task, where pairs are scored.
    """

    queries: int
    candidate_rows: int
    known_edges: int
    pairs: int


def sizes_for(
    memory_bytes: int, dimension: int, num_candidates: int, k: int, products: int = PRODUCTS
) -> Sizes:
    """Divide the memory of a task: half for queries and answers, a quarter each for other data."""
    query_bytes = 8 * dimension + (TopK.HELD_BYTES + 2 * _ID_BYTES) * k
    tile_bytes = 12 * WIDTH * dimension
    needed = max(2 * query_bytes, 4 * tile_bytes)
    if needed > memory_bytes:
        raise ConfigError(
            f"--task-memory: expected {-(-needed >> 20)}MiB at least, for vectors of length {dimension} and "
            f"{k} answers for an id; or ask for fewer with --k"
        )
    useful_queries = products // max(num_candidates * dimension, 1)
    return Sizes(
        min(max(useful_queries, FEWEST_QUERIES), memory_bytes // 2 // query_bytes),
        memory_bytes // 4 // tile_bytes * WIDTH,
        memory_bytes // 4 // 32,
        min(MOST_PAIRS, memory_bytes // 2 // (16 * dimension + 4 * _ID_BYTES)),
    )


@dataclass(frozen=True)
class LeftOut:
    """Candidates that are no answers.

    Attributes:
        relation: whose edges are known.
        side: of the candidates.
        folders: of known edges; none where these are answers too.
        itself: the id that is asked about; both tables are of one type.
    """

    relation: int
    side: Side
    folders: tuple[str, ...] = ()
    itself: bool = False

    def __bool__(self) -> bool:
        return self.itself or bool(self.folders)

    def read(self, queries: EntityTable, numbers: Numbers, candidates: EntityTable, partition: int) -> Pairs:
        """Read what is left out of a partition, some of it twice: query [K], row of the candidate [K].

        `numbers` are those of the queries' entities; they ascend.
        """
        first = candidates.first[partition]
        if self.itself:
            start, stop = np.searchsorted(numbers, candidates.first[partition : partition + 2])
            yield np.arange(start, stop), numbers[start:stop] - first
        config = candidates.trained.config
        graph = Graph(config, {table.entity_type: table.num_rows for table in (queries, candidates)})
        pieces = pieces_of(config, self.folders, (candidates.entity_type, partition), [self.side])
        asking = queries.rows_of(numbers), pieces, [self.side.other]
        for row_edges in edges_of(graph, *asking, relation=self.relation, takes_features=True):
            yield row_edges.place_H, row_edges.edges.ends(self.side) - first


@dataclass(frozen=True)
class Asked:
    """The question that all queries share; small, because every task receives it.

    Attributes:
        side: side of the answers.
        left_out: candidates that are no answers.
        scale: adds probabilities to the answers.
        num_gpus: 0 searches on the CPU.
        lists: only candidates of the nearest lists are compared; None: all.
    """

    relation: Relation
    side: Side
    k: int
    queries: EntityTable
    candidates: EntityTable
    left_out: LeftOut
    sizes: Sizes
    num_gpus: int = 0
    scale: Scale | None = None
    lists: Lists | None = None

    @property
    def num_best(self) -> int:
        """Candidates to find for a query: a probability compares an answer with NUM_BEST of them."""
        return self.k if self.scale is None else max(self.k, NUM_BEST)

    def made_queries(self, number_U: Numbers) -> Floats:
        """Queries as scores take them, [U, D], and padding."""
        where = f"{self.queries.trained.checkpoint_path}: {self.queries.entity_type!r}"
        make = partial(self.relation.queries, self.side)
        return made(make, self.queries.gather(number_U), HEIGHT, where)

    def made_candidates(self, number_N: Numbers) -> Floats:
        """Candidates as scores take them, [N, D]."""
        table = self.candidates
        where = f"{table.trained.checkpoint_path}: {table.entity_type!r}"
        make = partial(self.relation.candidates, self.side)
        return made(make, table.gather(number_N), WIDTH, where)[: len(number_N)]

    def search_all(self, number_U: Numbers) -> tuple[Answers, int]:
        """Compare entities, whose numbers ascend, with all candidates: answers, number of known edges."""
        left_out = partial(self.left_out.read, self.queries, number_U, self.candidates)
        scan = Scan(
            self.relation,
            self.side,
            self.made_queries(number_U),
            len(number_U),
            self.candidates,
            left_out if self.left_out else None,
            self.sizes.candidate_rows,
            self.sizes.known_edges,
        )
        return scan.best(self.num_best, self.num_gpus)
