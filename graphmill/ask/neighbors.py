"""`python -m remap neighbors`: the nearest neighbours of an id, for a look at the quality of vectors.

The search compares all vectors of the type, one batch at a time: by cosines, or along a relation by the
scores of the model.

{folder}/{type}/*.parquet       of ours, of GraphStorm, or renamed: a column of ids (strings or integers) and
                                one of lists of floats; or the columns id, type and vector of remap

Shapes: D dimension, N rows of a part, Q queries, K neighbours.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.edges import loopless
from graphmill.ask.relation import number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun, find_model
from graphmill.ask.scan import TopK
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.display.readable import shortened
from graphmill.errors import ConfigError, FormatError, NotFoundError, closest, suggestion
from graphmill.formats.parquet import are_vectors, files_at, iter_columns, open_parquet
from graphmill.formats.raw_ids import is_text
from graphmill.model import comparators
from graphmill.vocab import Side

BATCH_ROWS = 1 << 16
_MAX_CLOSE, _LONGEST = 10_000, 1000  # ids; letters of one, of which the search takes the square

Score = Callable[[Floats], Floats]  # vectors [N, D] -> their scores for each query [N, Q]


def close_id(raw_id: str, batches: Iterable[pa.Array]) -> str:
    """The end of a message about an unknown id: "; did you mean ...?", or "".

    Compares at most `_MAX_CLOSE` ids that share the beginning, the end or both with the id, of those in
    `batches` (string [N]).
    """
    size = len(raw_id)
    near_ids: list[str] = []
    for ids in batches if size <= _LONGEST else ():
        near = ids.filter(pc.less_equal(pc.abs(pc.subtract(pc.utf8_length(ids), size)), 2))
        begins = [pc.starts_with(near, raw_id[:n], ignore_case=True) for n in (size // 3, size * 2 // 3)]
        ends = [pc.ends_with(near, raw_id[size - n :], ignore_case=True) for n in (size // 3, size * 2 // 3)]
        is_close = pc.or_(pc.or_(begins[1], ends[1]), pc.and_(begins[0], ends[0]))
        near_ids += near.filter(is_close).slice(0, _MAX_CLOSE - len(near_ids)).to_pylist()
        if len(near_ids) >= _MAX_CLOSE:
            break
    close = closest(raw_id, near_ids)
    return f"; did you mean {close!r}?" if close else ""


class Neighbor(NamedTuple):
    """A raw id, and the score of its vector for the query: the cosine, or the model's score."""

    id: str
    similarity: float


def nearest(
    parts: Iterable[tuple[pa.Array, Floats]], score: Score, leave_out: Sequence[str | None], k: int
) -> list[list[Neighbor]]:
    """The `k` rows with the highest scores for each query, best first; the earlier of equal rows first.

    Rows with a NaN score are left out. Memory: one part, and K rows per query.

    Args:
        parts: ids (string [N]) and float32 [N, D].
        score: such as `by_cosine`.
        leave_out: for each query, the id that is not its own neighbour.
        k: K, at most.
    """
    best, names, first = TopK(len(leave_out), k), dict[int, str](), 0
    queries = np.arange(len(leave_out))
    for ids, vectors_ND in parts:
        score_QN = np.array(score(vectors_ND).T, np.float32, order="C")
        score_QN[~np.isfinite(score_QN)] = -np.inf  # NaN has no place in an order
        for query, own in enumerate(leave_out):
            if own is not None:
                score_QN[query, pc.equal(ids, own).to_numpy(zero_copy_only=False)] = -np.inf
        best.add(queries, score_QN, np.arange(first, first + len(ids)))
        held = np.unique(best.result().candidate)
        new = held[held >= first]
        names = {number: names[number] for number in held[held < first].tolist()}
        names |= zip(new.tolist(), ids.take(pa.array(new - first)).to_pylist(), strict=True)
        first += len(ids)
    neighbors: list[list[Neighbor]] = [[] for _ in leave_out]
    for query, value, number in zip(*best.result(), strict=True):
        neighbors[query].append(Neighbor(names[int(number)], float(value)))
    return neighbors


def by_cosine(queries_QD: Floats) -> Score:
    """Score vectors by their cosine with each query."""
    unit_DQ = unit(queries_QD).T
    return lambda vectors_ND: unit(vectors_ND) @ unit_DQ


def unit(vectors_ND: Floats) -> Floats:
    """The vectors scaled to length 1; zero vectors stay."""
    return comparators.prepare("cos", False, vectors_ND)


@dataclass(frozen=True)
class VectorTable:
    """One file, and the names of its columns."""

    uri: str
    ids: str
    vectors: str

    def batches(self) -> Iterator[tuple[pa.Array, Floats]]:
        """Read ids (string [N]) and vectors [N, D]."""
        with open_parquet(self.uri, storage.manifest_of_table(self.uri)) as parquet:
            for _, (ids, lists) in iter_columns(parquet, self.uri, [self.ids, self.vectors], BATCH_ROWS):
                if not len(ids):
                    continue
                values = lists.flatten()
                if values.null_count or len(pc.unique(pc.list_value_length(lists))) > 1:
                    raise FormatError(f"{self.uri}: expected vectors of one length, and no nulls")
                rows_ND = values.to_numpy(zero_copy_only=False).reshape(len(ids), -1)
                yield ids.cast(pa.string()), rows_ND.astype(np.float32, copy=False)

    def iter_ids(self) -> Iterator[pa.Array]:
        """Read ids alone, string [N] at a time."""
        with open_parquet(self.uri) as parquet:
            for _, (ids,) in iter_columns(parquet, self.uri, [self.ids], BATCH_ROWS):
                yield ids.cast(pa.string())


def batches(tables: Iterable[VectorTable], dimension: int) -> Iterator[tuple[pa.Array, Floats]]:
    """Read ids (string [N]) and vectors [N, D] of all tables, one after the other."""
    for table in tables:
        for ids, rows_ND in table.batches():
            if rows_ND.shape[1] != dimension:
                raise FormatError(
                    f"{table.uri}: expected vectors of length {dimension}, found {rows_ND.shape[1]}; give a "
                    "folder whose tables are of one model"
                )
            yield ids, rows_ND


def find_types(folder: str) -> dict[str, list[VectorTable]]:
    """Find the tables of each type, in the order of their names."""
    entries = [entry.uri for entry in storage.list_dir(folder) if entry.is_dir]
    folders = {storage.name(uri): list(map(_open, files_at(uri))) for uri in entries}
    tables = {entity_type: own for entity_type, own in folders.items() if own}
    if not tables:
        raise NotFoundError(f"{folder}: expected a folder with tables of vectors for each type, found none")
    return tables


def _open(uri: str) -> VectorTable:
    with open_parquet(uri) as parquet:
        fields = list(parquet.schema_arrow)
        if [field.name for field in fields[:3]] == ["id", "type", "embedding"]:
            fields = fields[:3]  # those behind, such as num_edges, are neither ids nor vectors
    vectors = [field.name for field in fields if are_vectors(field.type)]
    ids = [field.name for field in fields if is_text(field.type) or pa.types.is_integer(field.type)]
    if [is_text(field.type) for field in fields] == [True, True, False]:  # id, type, vector: ours
        ids = ids[:1]
    if len(vectors) != 1 or len(ids) != 1:
        raise FormatError(
            f"{uri}: expected one column of ids and one of lists of floats, found "
            f"{', '.join(f'{field.name} ({field.type})' for field in fields)}"
        )
    return VectorTable(uri, ids[0], vectors[0])


def _find_id(
    tables: dict[str, list[VectorTable]], raw_id: str, entity_type: str | None
) -> tuple[str, Floats]:
    """Find the type and the vector [D] of an id, in `entity_type` or in the first type that has the id."""
    if entity_type is not None and entity_type not in tables:
        raise NotFoundError(f"--type {entity_type}: {suggestion(entity_type, tables, 'expected one of')}")
    searched = [entity_type] if entity_type else list(tables)
    for name in searched:
        for table in tables[name]:
            if not any(pc.index(ids, raw_id).as_py() >= 0 for ids in table.iter_ids()):
                continue
            found = [  # to the end of the table, where its checksum is compared
                rows_ND[row].copy()
                for ids, rows_ND in table.batches()
                if (row := pc.index(ids, raw_id).as_py()) >= 0
            ]
            return name, found[-1]
    close = close_id(raw_id, (ids for name in searched for table in tables[name] for ids in table.iter_ids()))
    raise NotFoundError(f"--id {shortened(raw_id, 80)}: there is no such id in {', '.join(searched)}{close}")


def neighbors(folder: str, raw_id: str, k: int, entity_type: str | None = None) -> tuple[str, list[Neighbor]]:
    """Find the type of an id, and the `k` nearest of that type."""
    tables = find_types(folder)
    entity_type, vector_D = _find_id(tables, raw_id, entity_type)
    own = batches(tables[entity_type], len(vector_D))
    return entity_type, nearest(own, by_cosine(vector_D[None]), [raw_id], k)[0]


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool, with_itself: bool = False
) -> tuple[str, list[Neighbor]]:
    """Find the `k` entities at the other end of a relation with the best scores for an id; and their type.

    The id itself is among them only `with_itself`, or where a training edge of the relation is a loop.

    Raises:
        ConfigError: there is no such relation, or its training has not ended.
        NotFoundError: the type at this end has no such id, or there is no checkpoint.
        FormatError: the vectors of `folder`, the ids or the parameters are not of one model.
    """
    trained = TrainedRun(config, *find_model(config, config.remap.checkpoint_version, folder))
    relation = relation_of(trained, read_parameters(trained), number_of(trained, name))
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    _, vector_D = _find_id(tables, raw_id, relation.types[side.other])
    if len(vector_D) != (dimension := config.entity_dimension(relation.types[side.other])):
        raise ConfigError(f"{folder}: expected vectors of length {dimension}, found {len(vector_D)}")
    wanted = relation.types[side]
    leave_out = None if with_itself or not loopless(config, [relation.number]) else raw_id
    query_1D = relation.queries(side, vector_D[None])

    def score(rows_ND: Floats) -> Floats:
        return relation.edge_scores(side, query_1D, relation.candidates(side, rows_ND))[:, None]

    of_wanted = batches(tables.get(wanted, []), config.entity_dimension(wanted))
    return wanted, nearest(of_wanted, score, [leave_out], k)[0]
