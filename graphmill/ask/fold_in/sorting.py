"""Sorts the edges of one piece by new id: Dask tasks.

    {folder}/sorted-{number:06d}.arrow      one record batch for each type and group of ids, also if empty
        id          string      an id that the run does not know
        relation    int32       -1: only the id is given
        is_rhs      bool        whether the id is the right-hand side
        known       int64       number of the known end in its type; -1: there is none
        weight      float32
        order       uint64      a hash of relation, side and known end: edges of an id are in this order

A group holds the ids of a range of hashes. Shapes: E edges, K rows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.ask.entities import UNKNOWN, EntityTables, Numbers, are_of_type, find_ends
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.formats.murmur import hash_strings, mix, scale
from graphmill.vocab import Side

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("relation", pa.int32()),
        ("is_rhs", pa.bool_()),
        ("known", pa.int64()),
        ("weight", pa.float32()),
        ("order", pa.uint64()),
    ]
)
COUNTS = ("num_between_known", "num_between_new", "num_usable", "num_known_ids")
NONE = -1
_ORDER = [(name, "ascending") for name in ("id", "order", "relation", "is_rhs", "known", "weight")]
_LAST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Sorting:
    """Inputs that every task needs to sort a piece.

    Attributes:
        tables: known entities by type.
        num_groups: of each type, in which the configuration's seed and a hash place ids.
        max_edges: edges of an id that count.
    """

    config: Config
    tables: EntityTables
    num_groups: int
    max_edges: int


def read_batch(sorting: Sorting, uri: str, entity_type: str, group: int) -> pa.RecordBatch:
    """Read the rows of a type's group from a file of `sort_piece`."""
    number = list(sorting.tables).index(entity_type) * sorting.num_groups + group
    with storage.open_input(uri) as stream, pa.ipc.open_file(stream) as reader:
        if number >= reader.num_record_batches:
            raise FormatError(
                f"{uri}: expected {number + 1} batches or more, found {reader.num_record_batches}"
            )
        return reader.get_batch(number)


def first_edges(rows: pa.Table, max_edges: int) -> pa.Table:
    """Sort rows by id, and keep the first `max_edges` of an id; those with a known end come first."""
    rows = rows.sort_by(_ORDER).combine_chunks()
    id_K = rows["id"].combine_chunks().dictionary_encode().indices.to_numpy()  # ascending
    return rows.filter(pa.array(np.arange(len(id_K)) - np.searchsorted(id_K, id_K) < max_edges))


def sort_piece(sorting: Sorting, piece_uri: str, entity_type: str | None, uri: str) -> dict[str, int]:
    """Sort a piece of edges, or of ids of one type; return counts of edges, and of new ids' rows by type."""
    with storage.open_input(piece_uri) as stream:
        piece = pq.read_table(stream)
    counts = dict.fromkeys(COUNTS, 0)
    if entity_type is None:
        rows = rows_of_edges(sorting, piece, counts)
    else:
        ids = piece["id"].combine_chunks()
        is_new = sorting.tables[entity_type].find(ids) == UNKNOWN
        counts["num_known_ids"] = int((~is_new).sum())
        rows = {entity_type: _rows(ids.filter(pa.array(is_new)), NONE, False, None, None)}
    with storage.atomic_output(uri) as stream, pa.ipc.new_file(stream, SCHEMA) as writer:
        for name in sorting.tables:
            own = rows.get(name, SCHEMA.empty_table())
            most = pc.max(pc.value_counts(own["id"]).field("counts")).as_py() or 0
            own = first_edges(own, sorting.max_edges) if most > sorting.max_edges else own
            for batch in _grouped(own, sorting):
                writer.write_batch(batch)
    return counts | {f"type:{name}": len(new_rows) for name, new_rows in rows.items() if len(new_rows)}


def rows_of_edges(sorting: Sorting, piece: pa.Table, counts: dict[str, int]) -> dict[str, pa.Table]:
    """Rows of the ids that the run does not know, by type; sets the counts of edges."""
    relation_E = piece["relation"].to_numpy()
    numbers = find_ends(sorting.config, sorting.tables, relation_E, piece)
    is_new = {side: numbers[side] == UNKNOWN for side in Side}
    counts["num_between_new"] = int((is_new[Side.LHS] & is_new[Side.RHS]).sum())
    counts["num_between_known"] = int((~is_new[Side.LHS] & ~is_new[Side.RHS]).sum())
    counts["num_usable"] = len(piece) - counts["num_between_new"] - counts["num_between_known"]
    by_type: dict[str, list[pa.Table]] = {}
    for side in Side:
        for name in sorting.tables:
            here = np.flatnonzero(is_new[side] & are_of_type(sorting.config, relation_E, side, name))
            if len(here):
                ids = piece[side].combine_chunks().take(pa.array(here))
                known, weight = numbers[side.other][here], piece["weight"].to_numpy()[here]
                rows = _rows(ids, relation_E[here], side is Side.RHS, known, weight)
                by_type.setdefault(name, []).append(rows)
    return {name: pa.concat_tables(parts) for name, parts in by_type.items()}


def _rows(
    ids: pa.Array, relation: Numbers | int, is_rhs: bool, known: Numbers | None, weight: Numbers | None
) -> pa.Table:
    num = len(ids)
    relation_K = np.broadcast_to(np.asarray(relation, np.int32), num)
    known_K = np.full(num, NONE, np.int64) if known is None else known
    key_K = mix((known_K.astype(np.uint64) << np.uint64(1)) + np.uint64(is_rhs))
    order_K = mix(key_K ^ mix(relation_K.astype(np.uint64) + np.uint64(1)))
    order_K[known_K == NONE] = _LAST
    columns = [
        ids,
        pa.array(relation_K),
        pa.array(np.full(num, is_rhs)),
        pa.array(known_K),
        pa.array(np.ones(num, np.float32) if weight is None else weight),
        pa.array(order_K),
    ]
    return pa.table(columns, schema=SCHEMA)


def _grouped(rows: pa.Table, sorting: Sorting) -> list[pa.RecordBatch]:
    """Cut rows into groups by the hash of the id; there are batches of empty groups too."""
    ids = rows["id"].combine_chunks()
    group_K = scale(hash_strings(ids, sorting.config.seed), sorting.num_groups)
    ordered = rows.take(pa.array(np.argsort(group_K, kind="stable"))).combine_chunks()
    bounds = np.searchsorted(np.sort(group_K), np.arange(sorting.num_groups + 1)).tolist()
    return [
        pa.record_batch(
            [column.combine_chunks() for column in ordered.slice(start, stop - start).columns], SCHEMA
        )
        for start, stop in pairwise(bounds)
    ]
