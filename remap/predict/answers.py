"""The best candidates of some queries, as one file: a Dask task.

    part-{number:05d}.parquet       the answers of an id together, best first
        id          string          the raw id that was asked for
        relation    string
        rank        int32           1 is the best
        candidate   string          the raw id of the answer
        score       float32         the model's score of the edge

Shapes: Q ids, U distinct entities among them, P queries and N candidates of a tile, D dimension.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.formats.parquet import iter_columns, open_parquet
from graphmill.sorted_arrays import distinct
from graphmill.vocab import Side
from remap.predict.best import Answers, Best
from remap.predict.known import KnownEdges, KnownRange
from remap.predict.sizes import HEIGHT, WIDTH, Sizes
from remap.predict.table import UNKNOWN, EntityTable
from remap.predict.tiles import tiles
from remap.sources.relation import Relation

Numbers = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("candidate", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)
FOUND = pa.schema([pa.field("id", pa.string()), pa.field("number", pa.int64())])
_ROWS_OF_A_GROUP = 1 << 17


@dataclass(frozen=True)
class Asked:
    """The question that all queries share; small, because every task receives it.

    Attributes:
        side: side of the answers.
        known: edges that are no answers.
    """

    relation: Relation
    side: Side
    k: int
    queries: EntityTable
    candidates: EntityTable
    known: KnownEdges | None
    sizes: Sizes


@dataclass(frozen=True)
class Chunk:
    """Entities start..stop of the queries' type, or the ids of one row group of a file of found ids."""

    start: int
    stop: int
    found_uri: str | None = None
    group: int = 0


def write_answers(asked: Asked, chunk: Chunk, uri: str) -> dict[str, int]:
    """Write the answers of a chunk; return their number, and the number of known edges that are left out.

    Raises:
        FormatError: a vector or a parameter is damaged, not finite, or too large.
    """
    ids, number_Q = _read_chunk(asked, chunk)
    number_U = distinct(number_Q[number_Q != UNKNOWN])
    search = _Search(asked, number_U)
    for partition in range(len(asked.candidates.parts)):
        search.visit(partition)
    answers = search.answers()
    num_rows = _write(asked, ids, np.searchsorted(number_U, number_Q), number_Q != UNKNOWN, answers, uri)
    return {"num_answers": num_rows, "num_known_left_out": search.num_known}


def _read_chunk(asked: Asked, chunk: Chunk) -> tuple[pa.ChunkedArray, Numbers]:
    """Raw ids (string [Q]) and the numbers of their entities [Q]."""
    if chunk.found_uri is None:
        number_Q = np.arange(chunk.start, chunk.stop)
        return asked.queries.names(number_Q), number_Q
    with open_parquet(chunk.found_uri) as parquet:
        batches = [
            columns
            for _, columns in iter_columns(
                parquet, chunk.found_uri, FOUND.names, chunk.stop - chunk.start, [chunk.group]
            )
        ]
    ids, numbers = zip(*batches, strict=True)
    return pa.chunked_array(ids, pa.string()), np.concatenate([each.to_numpy() for each in numbers])


class _Search:
    """The best candidates of distinct entities, whose numbers [U] ascend."""

    def __init__(self, asked: Asked, number_U: Numbers) -> None:
        self.asked, self.number_U, self.num_known = asked, number_U, 0
        relation, side = asked.relation, asked.side
        vectors_UD = asked.queries.gather(number_U)
        where = f"{asked.queries.inputs.checkpoint_path}: {asked.queries.entity_type!r}"
        make = partial(relation.queries, side)
        height = min(HEIGHT, asked.sizes.queries)
        self._blocks = [
            (slice(start, min(start + height, len(number_U))), tile_PD)
            for start, tile_PD in tiles(vectors_UD, HEIGHT, make, where, step=height)
        ]
        self._best = [Best(rows.stop - rows.start, asked.k) for rows, _ in self._blocks]

    def visit(self, partition: int) -> None:
        """Score all queries against the candidates of a partition."""
        candidates = self.asked.candidates
        where = f"{candidates.inputs.checkpoint_path}: {candidates.entity_type!r}, partition {partition}"
        make = partial(self.asked.relation.candidates, self.asked.side)
        known = self._known(partition, 0)
        for first, vectors_ND in candidates.blocks(partition, self.asked.sizes.candidate_rows):
            progress.stop_if_cancelled()
            left = [(first + start, tile) for start, tile in tiles(vectors_ND, WIDTH, make, where)]
            last = first + len(vectors_ND)
            while left:
                if known is not None and left[0][0] >= known.stop:
                    known = self._known(partition, known.stop)
                stop = last if known is None else min(last, known.stop)
                self._score(partition, [each for each in left if each[0] < stop], last, known)
                left = [each for each in left if each[0] >= stop]

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""
        parts = [
            (rows.start, best.shrink()) for (rows, _), best in zip(self._blocks, self._best, strict=True)
        ]
        empty = Best(0, 1).shrink()
        shifted = [each._replace(query=each.query + first) for first, each in parts]
        return Answers(*(np.concatenate(columns) for columns in zip(empty, *shifted, strict=True)))

    def _score(
        self, partition: int, blocks: list[tuple[int, Floats]], last: int, known: KnownRange | None
    ) -> None:
        base = int(self.asked.candidates.first[partition])
        for (rows, query_PD), best in zip(self._blocks, self._best, strict=True):
            keep = None if known is None else partial(_is_new, known, rows.start, base)
            for first, candidate_ND in blocks:
                score_PN = self.asked.relation.matrix_scores(self.asked.side, query_PD, candidate_ND)
                best.add(score_PN[: rows.stop - rows.start, : last - first], base + first, keep)
            best.shrink()

    def _known(self, partition: int, start: int) -> KnownRange | None:
        asked = self.asked
        if asked.known is None:
            return None
        edges = asked.known.read(asked.queries, self.number_U, asked.candidates, partition)
        num_rows = asked.candidates.parts[partition].num_rows
        found = KnownRange.read(edges, len(self.number_U), start, num_rows, asked.sizes.known_edges)
        self.num_known += len(found.codes)
        return found


def _is_new(
    known: KnownRange, first_query: int, first_candidate: int, query: Numbers, candidate: Numbers
) -> npt.NDArray[np.bool_]:
    """Which pairs are no known edges; their numbers begin at those of the tile and of the partition."""
    return ~known.has(query + first_query, candidate - first_candidate)


def _write(
    asked: Asked,
    ids: pa.ChunkedArray,
    place_Q: Numbers,
    is_known_Q: npt.NDArray[np.bool_],
    answers: Answers,
    uri: str,
) -> int:
    """Write the answers of each id, in the order of the ids; return their number."""
    wanted = distinct(answers.candidate)
    names = asked.candidates.names(wanted).cast(pa.large_string()).combine_chunks()
    num_rows = 0
    with (
        storage.atomic_output(uri, is_large=True) as stream,
        pq.ParquetWriter(
            stream, SCHEMA, compression="zstd", use_dictionary=["id", "relation", "candidate"]
        ) as parquet,
    ):
        step = max(1, _ROWS_OF_A_GROUP // asked.k)
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            query = np.flatnonzero(is_known_Q[part])
            first = np.searchsorted(answers.query, place_Q[part][query])
            count = np.searchsorted(answers.query, place_Q[part][query], side="right") - first
            rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            taken = np.repeat(first, count) + rank
            columns = [
                ids[part].take(pa.array(np.repeat(query, count))),
                pa.repeat(asked.relation.name, len(taken)),
                pa.array((rank + 1).astype(np.int32)),
                names.take(pa.array(np.searchsorted(wanted, answers.candidate[taken]))).cast(pa.string()),
                pa.array(answers.score[taken]),
            ]
            parquet.write_table(pa.table(columns, schema=SCHEMA), max(len(taken), 1))
            num_rows += len(taken)
    return num_rows
