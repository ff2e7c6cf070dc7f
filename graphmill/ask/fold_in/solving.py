"""Solves the new ids of one type and group, and writes their vectors: a Dask task.

    {folder}/{type}/part-{group:05d}.parquet    as docs/formats/embeddings.md says, sorted by id, and
        confidence      float32     from 0 to 1
        num_edges       int32       edges that the vector was solved for

Shapes: B ids, E edges, D dimension, K rows.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.ask.entities import EntityTable, Numbers
from graphmill.ask.fold_in.frozen import FrozenModel
from graphmill.ask.fold_in.new_edges import Mentions, NewEdges, parted, side_of
from graphmill.ask.fold_in.solver import OF_JOB, Solution, Solver
from graphmill.ask.fold_in.sorting import NONE, SCHEMA, Sorting, batch_number
from graphmill.ask.relation import check_magnitude
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.formats import remapped
from graphmill.storage import Checksums

COLUMNS = (
    pa.field("confidence", pa.float32(), nullable=False),
    pa.field("num_edges", pa.int32(), nullable=False),
)
MOST_FLOATS = 1 << 24
"""Coordinates of known ends that are in memory at a time, but for copies."""
_ORDER = [(name, "ascending") for name in ("id", "order", "relation", "is_rhs", "known", "weight")]


def solve_group(
    model: FrozenModel,
    sorting: Sorting,
    sorted_uris: Sequence[str],
    entity_type: str,
    group: int,
    max_edges: int,
    folder: str,
) -> tuple[dict[str, int], Checksums]:
    """Write the vectors of one group; return counts of ids, of ids without edges, of edges, and checksums."""
    number = batch_number(sorting, entity_type, group)
    rows = pa.concat_tables(_read_batch(uri, number) for uri in sorted_uris).sort_by(_ORDER).combine_chunks()
    encoded = rows["id"].combine_chunks().dictionary_encode()  # in order: ids are sorted
    ids, id_K = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    edges, mentions = _split(rows, id_K, max_edges)
    dimension = model.config.entity_dimension(entity_type)
    counts = np.bincount(edges.id_E, minlength=len(ids)).astype(np.int32)
    checksums: Checksums = {}
    new_part = remapped.new_part(folder, entity_type, group, dimension, more=COLUMNS, checksums=checksums)
    with new_part as part:
        for start, solution in solutions(model, sorting.tables, entity_type, edges, mentions, len(ids)):
            own = slice(start, start + len(solution.vectors_BD))
            part.append(ids[own], solution.vectors_BD, pa.array(solution.confidence_B), pa.array(counts[own]))
    return {
        "num_ids": len(ids),
        "num_without_edges": int((counts == 0).sum()),
        "num_edges": len(edges.id_E),
    }, checksums


def solutions(
    model: FrozenModel,
    tables: Mapping[str, EntityTable],
    entity_type: str,
    edges: NewEdges,
    mentions: Mentions,
    num_ids: int,
) -> Iterator[tuple[int, Solution]]:
    """Solve ids in blocks; yield the first id of a block with the solution. `edges` have no vectors yet."""
    solver = Solver(model, entity_type)
    dimension = model.config.entity_dimension(entity_type)
    for start, stop in _blocks(edges.id_E, num_ids, MOST_FLOATS // dimension):
        some = _with_vectors(model, tables, edges.of_ids(start, stop), dimension)
        solution = solver.solve(some, stop - start, mentions.of_ids(start, stop))
        where = f"{model.run.checkpoint_path}: vectors of new ids of {entity_type!r}"
        check_magnitude(solution.vectors_BD, where)
        yield start, solution
        progress.stop_if_cancelled()


def _blocks(id_E: Numbers, num_ids: int, most_edges: int) -> Iterator[tuple[int, int]]:
    """Cut ids into blocks of whole tiles, whose known ends are read together: a reading may pass all rows."""
    start = 0
    while start < num_ids:
        first = np.searchsorted(id_E, start)
        stop = num_ids if first + most_edges >= len(id_E) else int(id_E[first + most_edges])
        stop = start + max((stop - start) // OF_JOB.ids, 1) * OF_JOB.ids if stop < num_ids else num_ids
        yield start, min(stop, num_ids)
        start = stop


def _read_batch(uri: str, number: int) -> pa.Table:
    with storage.open_input(uri) as stream, pa.ipc.open_file(stream) as reader:
        if number >= reader.num_record_batches:
            raise FormatError(
                f"{uri}: expected {number + 1} batches or more, found {reader.num_record_batches}"
            )
        return pa.Table.from_batches([reader.get_batch(number)], SCHEMA)


def _split(rows: pa.Table, id_K: Numbers, max_edges: int) -> tuple[NewEdges, Mentions]:
    """The first `max_edges` edges of each id, without vectors; and mentions, of ids without edges too."""
    relation_K, known_K = (rows[name].to_numpy().astype(np.int64) for name in ("relation", "known"))
    is_rhs_K = rows["is_rhs"].to_numpy(zero_copy_only=False).astype(np.int64)
    kept = (known_K == NONE) | (np.arange(len(id_K)) - np.searchsorted(id_K, id_K) < max_edges)
    columns = id_K, relation_K, is_rhs_K, known_K, rows["weight"].to_numpy()
    return parted(*(column[kept] for column in columns))


def _with_vectors(
    model: FrozenModel, tables: Mapping[str, EntityTable], edges: NewEdges, dimension: int
) -> NewEdges:
    """Add the vectors of the known ends."""
    keys, inverse = np.unique(edges.relation_E * 2 + edges.is_rhs_E, return_inverse=True)
    types = np.array([model.type_of(key // 2, side_of(key % 2).other) for key in keys.tolist()], object)
    known_ED = np.zeros((len(edges.id_E), dimension), np.float32)
    for name in dict.fromkeys(types.tolist()):
        here = np.flatnonzero((types == name)[inverse])
        known_ED[here] = tables[name].gather(edges.known_E[here])
    check_magnitude(known_ED, "vectors of known ids")
    return edges._replace(known_ED=known_ED)
