"""The question of a command to a trained run: how its queries are made, what is no answer, sizes of blocks;
and its answers among all candidates, or among the lists nearest to each query.

The memory of a task stays below a limit, whatever the input. Lists come once, and meet the queries that are
nearest to them. One matrix product scores a list for all its queries.

Shapes: U distinct entities that are asked about, N candidates (of a tile), D dimension, K pairs that are left
out, L lists, P queries of a tile, M known edges.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graphmill.ask.edges import Graph, Numbers, edges_of, known_paths, loopless, pieces_of
from graphmill.ask.entities import EntityTable, EntityTables
from graphmill.ask.predict.lists import Lists
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.relation import Relation, number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import HEIGHT, WIDTH, Answers, Codes, Pairs, Scan, TopK, made, pairs_within
from graphmill.checkpoints import Floats, pbg
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import ConfigError, suggestion
from graphmill.formats import calibration
from graphmill.formats.calibration import Calibration
from graphmill.model import comparators
from graphmill.model.calibration import NUM_BEST, Scale
from graphmill.sorted_arrays import positions
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

MOST_QUERIES, MOST_CANDIDATES = 512, 4096  # of a product
MOST_SCORES = MOST_QUERIES * MOST_CANDIDATES
_PROBE_BYTES = 32
WINDOW_BYTES = 32 << 20  # memory of this size is used again; more is asked of the system each time


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
class Asked:
    """The question that all queries share; small, because every task receives it.

    Attributes:
        side: side of the answers.
        num_best: candidates to find for a query, K or more: a probability compares an answer with NUM_BEST.
        known_paths: folders of known edges that are no answers; none where they are answers too.
        is_itself_left_out: an id is no answer to itself; both tables are of one type.
        scale: adds probabilities to the answers.
        num_gpus: 0 searches on the CPU.
        lists: only candidates of the nearest lists are compared; None: all.
    """

    relation: Relation
    side: Side
    k: int
    num_best: int
    queries: EntityTable
    candidates: EntityTable
    known_paths: tuple[str, ...]
    is_itself_left_out: bool
    sizes: Sizes
    num_gpus: int
    scale: Scale | None
    lists: Lists | None = None

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

    def left_out(self, number_U: Numbers, partition: int) -> Pairs:
        """Read candidates of a partition that are no answers to some entities, whose numbers [U] ascend.

        Yields queries [K] and rows of candidates [K], some pairs twice.
        """
        queries, candidates = self.queries, self.candidates
        first = candidates.first[partition]
        if self.is_itself_left_out:
            start, stop = np.searchsorted(number_U, candidates.first[partition : partition + 2])
            yield np.arange(start, stop), number_U[start:stop] - first
        config = candidates.trained.config
        graph = Graph(config, {table.entity_type: table.num_rows for table in (queries, candidates)})
        pieces = pieces_of(config, self.known_paths, (candidates.entity_type, partition), [self.side])
        asking = queries.rows_of(number_U), pieces, [self.side.other]
        for row_edges in edges_of(graph, *asking, relation=self.relation.number, takes_features=True):
            yield row_edges.place_H, row_edges.edges.ends(self.side) - first

    def search_all(self, number_U: Numbers) -> tuple[Answers, int]:
        """Compare entities, whose numbers ascend, with all candidates: answers, number of known edges."""
        leaves_out = self.is_itself_left_out or self.known_paths
        scan = Scan(
            self.relation,
            self.side,
            self.made_queries(number_U),
            len(number_U),
            self.candidates,
            partial(self.left_out, number_U) if leaves_out else None,
            self.sizes.candidate_rows,
            self.sizes.known_edges,
        )
        return scan.best(self.num_best, self.num_gpus)


def search_lists(asked: Asked, lists: Lists, number_U: Numbers) -> tuple[Answers, int]:
    """Return the answers of entities, whose numbers [U] ascend, and the number of known edges left out.

    Queries with more known edges than fit in memory are answered in parts; a single one is answered exactly.
    """
    list_bytes = asked.sizes.candidate_rows * 4 * asked.candidates.dimension
    known = None
    if len(number_U) <= max(1, list_bytes // (_PROBE_BYTES * lists.num_probed)):
        known = _known_cells(asked, lists, number_U)
    if known is not None:
        return _ListSearch(asked, lists, number_U, known).answers(), len(known)
    if len(number_U) == 1:
        return replace(asked, num_gpus=0).search_all(number_U)
    middle = len(number_U) // 2
    first, num_known = search_lists(asked, lists, number_U[:middle])
    second, more = search_lists(asked, lists, number_U[middle:])
    halves = [first, second._replace(query=second.query + middle)]
    return Answers(*(np.concatenate(columns) for columns in zip(*halves, strict=True))), num_known + more


def _known_cells(asked: Asked, lists: Lists, number_U: Numbers) -> Numbers | None:
    """Known edges, candidate's place x queries + query, ascending; None if they do not fit in memory."""
    cells, num_queries = Codes(), max(len(number_U), 1)
    for partition in range(len(asked.candidates.parts)):
        first = asked.candidates.first[partition]
        for query, row in asked.left_out(number_U, partition):
            cells.add((row + first) * num_queries + query)
            if cells.exceed(asked.sizes.known_edges):
                return None
    number, query = np.divmod(cells.merged(), num_queries)
    return np.sort(lists.places(number) * num_queries + query)


class _ListSearch:
    """The best candidates of queries that fit in memory together with their known edges."""

    def __init__(self, asked: Asked, lists: Lists, number_U: Numbers, known: Numbers) -> None:
        self._asked, self._lists, self._known = asked, lists, known
        self._query_UD = asked.made_queries(number_U)[: len(number_U)]
        self._best = TopK(len(number_U), asked.num_best)
        small = WINDOW_BYTES // (4 * asked.candidates.dimension)
        self._window_rows = max(1, min(small, asked.sizes.candidate_rows))

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""
        lists, first_L1 = self._lists, self._lists.first()
        list_UP = nearest_lists(self._asked, lists, self._query_UD)
        order = np.argsort(list_UP.ravel(), kind="stable")
        bounds_L1 = np.searchsorted(list_UP.ravel()[order], np.arange(lists.num_lists + 1))
        query = order // max(list_UP.shape[1], 1)  # by list, ascending in each
        for part, start_list in enumerate(lists.part_first[:-1]):
            stop_list = lists.part_first[part + 1]
            if bounds_L1[start_list] == bounds_L1[stop_list]:
                continue
            base = int(first_L1[start_list])
            for row, vectors_ND, numbers in lists.windows(part, self._window_rows):
                progress.stop_if_cancelled()
                start, stop = base + row, base + row + len(numbers)
                for number in range(start_list, stop_list):
                    low, high = max(start, int(first_L1[number])), min(stop, int(first_L1[number + 1]))
                    queries = query[bounds_L1[number] : bounds_L1[number + 1]]
                    if low < high and len(queries):
                        here = slice(low - start, high - start)
                        self._compare(queries, vectors_ND[here], numbers[here], low)
        return self._best.result()

    def _compare(self, query_P: Numbers, vectors_ND: Floats, numbers: Numbers, place: int) -> None:
        """Compare queries with candidates of a list, the first of which has this place."""
        relation, side = self._asked.relation, self._asked.side
        for first in range(0, len(query_P), MOST_QUERIES):
            queries = query_P[first : first + MOST_QUERIES]
            query_PD = self._query_UD[queries]
            for start in range(0, len(numbers), MOST_CANDIDATES):
                tile_ND = vectors_ND[start : start + MOST_CANDIDATES]
                score_PN = relation.matrix_scores(side, query_PD, tile_ND)
                first_place = place + start
                known = pairs_within(
                    self._known, len(self._query_UD), first_place, first_place + len(tile_ND)
                )
                row = positions(queries, known[0])
                score_PN[row[row >= 0], known[1][row >= 0] - first_place] = -np.inf
                self._best.add(queries, score_PN, numbers[start : start + MOST_CANDIDATES])


def nearest_lists(asked: Asked, lists: Lists, query_UD: Floats) -> Numbers:
    """The lists [U, probed] whose centers score best for each query."""
    centers_LD, probed = lists.centers(), min(lists.num_probed, lists.num_lists)
    list_UP = np.empty((len(query_UD), probed), np.int64)
    step = max(1, min(MOST_QUERIES, MOST_SCORES // lists.num_lists))
    for start in range(0, len(query_UD), step):
        score_PL = asked.relation.matrix_scores(asked.side, query_UD[start : start + step], centers_LD)
        best = TopK(len(score_PL), probed)
        best.add(np.arange(len(score_PL)), score_PL, np.arange(len(centers_LD)))
        list_UP[start : start + step] = best.result().candidate.reshape(-1, probed)
    return list_UP


def asked_of(trained: TrainedRun, question: PredictOptions, tables: EntityTables) -> Asked:
    """Make of a question what every task gets."""
    config = trained.config
    relation, side = relation_asked(trained, question), question.side
    queries, candidates = tables[relation.types[side.other]], tables[relation.types[side]]
    k = max(1, min(question.k, candidates.num_entities))
    num_gpus = config.num_gpus if comparators.is_dot(relation.comparator, relation.bias) else 0
    products = GPU_PRODUCTS if num_gpus else PRODUCTS
    scale = read_calibration(trained).scale(relation.name, side) if question.calibrated else None
    num_best = k if scale is None else max(k, NUM_BEST)
    memory_bytes, num_entities = question.memory_bytes, candidates.num_entities
    sizes = sizes_for(memory_bytes, candidates.dimension, num_entities, num_best, products)
    folders = tuple(known_paths(config)) if question.exclude_known else ()
    if question.cosine:
        itself = queries.entity_type == candidates.entity_type
    else:
        itself = not question.with_itself and bool(loopless(config, [relation.number]))
    return Asked(relation, side, k, num_best, queries, candidates, folders, itself, sizes, num_gpus, scale)


def relation_asked(trained: TrainedRun, question: PredictOptions) -> Relation:
    """Make the relation that answers."""
    if question.cosine:
        return cosine_relation(trained.config, question)
    number = number_of(trained, question.relation or trained.relation_names[0])
    return relation_of(trained, read_parameters(trained), number)


def cosine_relation(config: Config, question: PredictOptions) -> Relation:
    """Make the relation whose score of two ids is the cosine of their vectors."""
    types = list(config.entities)
    if question.id_type is None and len(types) > 1:
        raise ConfigError(f"--type: missing; the run has {', '.join(types[:10])}")
    own = _known_type("--type", question.id_type or types[0], types)
    other = _known_type("--candidates", question.candidate_type or own, types)
    if config.entity_dimension(own) != config.entity_dimension(other):
        raise ConfigError(
            f"--candidates {other}: expected vectors as long as those of {own} "
            f"({config.entity_dimension(own)}), found {config.entity_dimension(other)}"
        )
    return Relation("cosine", 0, {Side.LHS: own, Side.RHS: other}, "none", "cos", False, {Side.RHS: []})


def _known_type(option: str, name: str, types: list[str]) -> str:
    if name not in types:
        raise ConfigError(f"{option} {name}: {suggestion(name, types, 'expected one of')}")
    return name


def read_calibration(trained: TrainedRun) -> Calibration:
    """Read the calibration of the run; raises as `graphmill.formats.calibration.read`."""
    config = trained.config
    checksum = pbg.version_checksum(trained.checkpoint_path, trained.version)
    uri = calibration.uri_beside(config.record_uri(config.checkpoint_path))
    return calibration.read(uri, trained.version, checksum)
