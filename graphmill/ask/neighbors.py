"""`python -m remap neighbors`: the nearest neighbours of an id, for a look at the quality of the vectors.

The search compares all vectors of the type, one batch at a time: by cosines, or along a relation by the
scores of the model.

{folder}/{type}/*.parquet       of ours, of GraphStorm, or renamed: a column of ids (strings or integers) and
                                one of lists of floats; or the columns id, type and vector of remap

Shapes: D dimension, N vectors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.edges import loopless
from graphmill.ask.nearest import Floats, Neighbor, Score, by_cosine, close_id, nearest
from graphmill.ask.relation import Relation, number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun, find_model
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError, NotFoundError, suggestion
from graphmill.formats.parquet import iter_columns, open_parquet
from graphmill.vocab import Side

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class VectorTable:
    """One file, and the names of its columns."""

    uri: str
    ids: str
    vectors: str
    num_rows: int

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


def batches(tables: Iterable[VectorTable]) -> Iterator[tuple[pa.Array, Floats]]:
    """Read ids (string [N]) and vectors [N, D] of all tables, one after the other."""
    for table in tables:
        yield from table.batches()


def find_types(folder: str) -> dict[str, list[VectorTable]]:
    """Find the tables of each type, in the order of their names."""
    folders = {
        storage.name(entry.uri): [
            _open(file.uri) for file in storage.list_dir(entry.uri) if file.uri.endswith(".parquet")
        ]
        for entry in storage.list_dir(folder)
        if entry.is_dir
    }
    tables = {entity_type: own for entity_type, own in folders.items() if own}
    if not tables:
        raise NotFoundError(f"{folder}: expected a folder with tables of vectors for each type, found none")
    return tables


def _open(uri: str) -> VectorTable:
    with open_parquet(uri) as parquet:
        fields = list(parquet.schema_arrow)
        if [field.name for field in fields[:3]] == ["id", "type", "embedding"]:
            fields = fields[:3]  # those behind, such as num_edges, are neither ids nor vectors
        num_rows = parquet.metadata.num_rows
    vectors = [field.name for field in fields if _is_vector(field.type)]
    ids = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_integer(f.type)]
    if [pa.types.is_string(f.type) for f in fields] == [True, True, False]:  # id, type, vector: ours
        ids = ids[:1]
    if len(vectors) != 1 or len(ids) != 1:
        raise FormatError(
            f"{uri}: expected one column of ids and one of lists of floats, found "
            f"{', '.join(f'{field.name} ({field.type})' for field in fields)}"
        )
    return VectorTable(uri, ids[0], vectors[0], num_rows)


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


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
            for ids, rows_ND in table.batches():  # to the end, where its checksum is compared
                if (row := pc.index(ids, raw_id).as_py()) >= 0:
                    vector_D = rows_ND[row].copy()
            return name, vector_D
    close = close_id(raw_id, (ids for name in searched for table in tables[name] for ids in table.iter_ids()))
    raise NotFoundError(f"--id {raw_id}: there is no such id among {', '.join(searched)}{close}")


def neighbors(folder: str, raw_id: str, k: int, entity_type: str | None = None) -> tuple[str, list[Neighbor]]:
    """Find the type of an id, and the `k` nearest of that type.

    Raises:
        NotFoundError: there are no tables, or no such id.
    """
    tables = find_types(folder)
    entity_type, vector_D = _find_id(tables, raw_id, entity_type)
    return entity_type, nearest(batches(tables[entity_type]), by_cosine(vector_D[None]), [raw_id], k)[0]


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool, with_itself: bool = False
) -> tuple[str, list[Neighbor]]:
    """Find the `k` entities at the other end of a relation with the best scores for an id; and their type.

    The id itself is among them only `with_itself`, or where a training edge of the relation is a loop.

    Raises:
        ConfigError: there is no such relation, the model has a bias, or its training has not ended.
        NotFoundError: the type at this end has no such id, or there is no checkpoint.
        FormatError: the vectors of `folder`, the ids or the parameters are not of one model.
    """
    relation = _find_relation(config, folder, name)
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    _, vector_D = _find_id(tables, raw_id, relation.types[side.other])
    if len(vector_D) != (dimension := config.entity_dimension(relation.types[side.other])):
        raise ConfigError(f"{folder}: expected vectors of length {dimension}, found {len(vector_D)}")
    wanted = relation.types[side]
    leave_out = None if with_itself or not loopless(config, [relation.number]) else raw_id
    score = _score(relation, side, vector_D)
    return wanted, nearest(batches(tables.get(wanted, [])), score, [leave_out], k)[0]


def _find_relation(config: Config, folder: str, name: str) -> Relation:
    if config.bias:
        raise ConfigError("--relation: a model with bias cannot be asked")
    trained = TrainedRun(config, *find_model(config, config.remap.checkpoint_version, folder))
    number = number_of(trained, name)
    return relation_of(trained, read_parameters(trained), number)


def _score(relation: Relation, side: Side, vector_D: Floats) -> Score:
    """Return a score of vectors of `side`: that of the edge between each vector and `vector_D`."""
    query_1D = relation.queries(side, vector_D[None])

    def score(rows_ND: Floats) -> Floats:
        return relation.edge_scores(side, query_1D, relation.candidates(side, rows_ND))[:, None]

    return score
