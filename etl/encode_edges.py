"""Step 1: each chunk of raw rows -> its distinct ids, and its edges as numbers into them.

Strings are touched once, here. What the other steps exchange are distinct ids and integers. The files of
a chunk, in the work folder:

    {chunk}.ids.arrow        id: string, in_train: bool; a batch a slot of each partition of each type
    {chunk}.relations.arrow  name: string; with dynamic relations only
    {chunk}.codes.arrow      lhs, rhs, rel: int32, positions in the files above (rel: in the configuration,
                             with static relations); split: uint8; weight: float32, if there are weights;
                             edge_hash: uint64, if edges of an unpartitioned type are to be spread
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl import hashing, spill
from etl.check_rows import Place
from etl.hashing import Hashes
from etl.layout import SLOTS, Layout
from etl.read_tables import Source, read_blocks
from etl.spill import Int32, Int64
from graphmill import storage
from graphmill.vocab import Side

IDS_SCHEMA = pa.schema([("id", pa.string()), ("in_train", pa.bool_())])
RELATIONS_SCHEMA = pa.schema([("name", pa.string())])


@dataclass(frozen=True)
class Chunk:
    """What the other steps need to know of an encoded chunk; the rest is in its files."""

    uri: str
    """What its files' names start with."""
    num_rows: int
    num_ids: Int64
    """[partitions of all types, SLOTS] distinct ids."""
    id_bytes: Int64
    """[partitions of all types, SLOTS] bytes of these ids."""
    num_relations: int
    """Distinct relation names, with dynamic relations."""


@dataclass(frozen=True)
class _Ids:
    """The distinct ids of one type in a chunk, ordered by partition and slot."""

    strings: pa.Array
    hashes: Hashes
    num_ids: Int64
    """[partitions x SLOTS]."""
    id_bytes: Int64
    """[partitions x SLOTS]."""


def encode_source(layout: Layout, source: Source, number: int) -> list[Chunk]:
    """Encode the rows of one source, chunk by chunk."""
    chunks: list[Chunk] = []
    for place, block in read_blocks(source, layout.chunk_rows):
        uri = storage.join(layout.work_uri, f"{number:06d}-{len(chunks):06d}")
        chunks.append(_encode(layout, source, place, block, uri))
    return chunks


def _encode(layout: Layout, source: Source, place: Place, block: pa.Table, uri: str) -> Chunk:
    rel_N, names = _encode_relations(layout, source, place, block)
    lhs_N, rhs_N, ids = _encode_ids(layout, block, rel_N)
    hashes = np.concatenate([each.hashes for each in ids])
    split = layout.splits.index(source.table.split)
    columns: dict[str, Any] = {"lhs": lhs_N, "rhs": rhs_N, "rel": rel_N}
    columns["split"] = np.full(len(lhs_N), split, np.uint8)
    draws = bool(layout.holdout) and split == layout.train
    if draws or layout.spreads:
        rel_hashes = hashing.hash_strings(names, layout.seed)
        # 3: an edge and its reverse are two edges.
        ends_N = hashing.mix((hashes[lhs_N] * np.uint64(3)) ^ hashes[rhs_N])
        edge_hash_N = hashing.mix(ends_N ^ rel_hashes[rel_N])
        if draws:
            columns["split"] = layout.draw_splits(edge_hash_N)
        if layout.spreads:
            columns["edge_hash"] = edge_hash_N
    if layout.weighted:
        weighted = "weight" in block.column_names
        columns["weight"] = block["weight"].to_numpy() if weighted else np.ones(len(lhs_N), np.float32)

    in_train = np.zeros(len(hashes), bool)
    train_N = columns["split"] == layout.train
    in_train[lhs_N[train_N]] = in_train[rhs_N[train_N]] = True
    spill.write_batches(f"{uri}.ids.arrow", IDS_SCHEMA, _id_batches(ids, in_train))
    if layout.dynamic:
        spill.write_batches(f"{uri}.relations.arrow", RELATIONS_SCHEMA, [_batch(RELATIONS_SCHEMA, names)])
    codes = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
    spill.write_batches(f"{uri}.codes.arrow", codes.schema, [codes])
    return Chunk(
        uri,
        block.num_rows,
        np.concatenate([each.num_ids for each in ids]).reshape(-1, SLOTS),
        np.concatenate([each.id_bytes for each in ids]).reshape(-1, SLOTS),
        len(names) if layout.dynamic else 0,
    )


def _encode_relations(
    layout: Layout, source: Source, place: Place, block: pa.Table
) -> tuple[Int32, pa.Array]:
    """Number of each row's relation, and the names that are numbered.

    With static relations these are the configuration's; with dynamic ones, those of the chunk.

    Raises:
        RawTableError: a row's relation is not in the configuration.
    """
    known = [name for name, _, _ in layout.relations]
    constant = source.table.relation
    if constant is not None:
        names = [constant] if layout.dynamic else known
        return np.full(block.num_rows, names.index(constant), np.int32), pa.array(names, pa.string())
    chunks = block["relation"].chunks
    code_N = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    found: pa.Array = chunks[0].dictionary
    # A dictionary may hold names that no row of this chunk has.
    used = np.flatnonzero(np.bincount(code_N, minlength=len(found)))
    number_of = np.zeros(len(found), np.int32)
    if layout.dynamic:
        number_of[used] = np.arange(len(used))
        return number_of[code_N], found.take(pa.array(used))
    for code in used:
        name = found[code].as_py()
        if name not in known:
            row = int(np.flatnonzero(code_N == code)[0])
            raise place.error(
                "relation",
                row,
                f"{name!r} is not a relation of the configuration, which has {', '.join(known)}; add it to "
                "relations, or set dynamic_relations to take every name that occurs",
            )
        number_of[code] = known.index(name)
    return number_of[code_N], pa.array(known, pa.string())


def _encode_ids(layout: Layout, block: pa.Table, rel_N: Int32) -> tuple[Int32, Int32, list[_Ids]]:
    """Position of each row's ends among the chunk's distinct ids, and these ids, type by type."""
    rows = {side: _rows_of_types(layout, side, rel_N) for side in Side}
    codes = {side: np.empty(block.num_rows, np.int32) for side in Side}
    ids: list[_Ids] = []
    num_earlier = 0
    for entity_type, num_partitions in layout.num_partitions.items():
        strings = {
            side: _selected(block[side], rows[side][entity_type])
            for side in Side
            if entity_type in rows[side]
        }
        position_M, of_type = _distinct(list(strings.values()), num_partitions, layout.seed)
        position_M += num_earlier
        start = 0
        for side, column in strings.items():
            mask = rows[side][entity_type]
            codes[side][slice(None) if mask is None else mask] = position_M[start : start + len(column)]
            start += len(column)
        ids.append(of_type)
        num_earlier += len(of_type.hashes)
    return codes[Side.LHS], codes[Side.RHS], ids


def _rows_of_types(layout: Layout, side: Side, rel_N: Int32) -> dict[str, npt.NDArray[np.bool_] | None]:
    """Which rows have an entity of which type on `side`; None: all rows."""
    types = [relation[1 if side is Side.LHS else 2] for relation in layout.relations]
    present = types if layout.dynamic else [types[number] for number in np.flatnonzero(np.bincount(rel_N))]
    if len(set(present)) == 1:
        return {present[0]: None}
    type_numbers = np.array([layout.entity_types.index(name) for name in types])
    type_N = type_numbers[rel_N]
    return {name: type_N == layout.entity_types.index(name) for name in set(present)}


def _selected(column: pa.ChunkedArray, mask: npt.NDArray[np.bool_] | None) -> pa.ChunkedArray:
    return column if mask is None else column.filter(pa.array(mask))


def _distinct(strings: list[pa.ChunkedArray], num_partitions: int, seed: int) -> tuple[Int32, _Ids]:
    """Position of each string among the distinct ones, and these in the order of their slots."""
    column = pa.chunked_array([chunk for each in strings for chunk in each.chunks], pa.string())
    encoded = column.dictionary_encode()
    if encoded.num_chunks == 0:
        encoded = pa.chunked_array([pa.array([], pa.string()).dictionary_encode()])
    distinct = encoded.chunk(0).dictionary  # all chunks share one
    code_M = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    hashes = hashing.hash_strings(distinct, seed)
    num_slots = num_partitions * SLOTS
    slots = hashing.scale(hashes, num_slots)
    # numpy sorts 16-bit integers by radix, several times faster.
    order = np.argsort(slots.astype(np.uint16 if num_slots <= 1 << 16 else np.uint32), kind="stable")
    position_of = np.empty(len(order), np.int32)
    position_of[order] = np.arange(len(order), dtype=np.int32)
    lengths = pc.binary_length(distinct).to_numpy()
    ids = _Ids(
        distinct.take(pa.array(order)),
        hashes[order],
        np.bincount(slots.astype(np.int64), minlength=num_slots),
        np.bincount(slots.astype(np.int64), weights=lengths, minlength=num_slots).astype(np.int64),
    )
    return position_of[code_M], ids


def _id_batches(ids: list[_Ids], in_train: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    start = 0
    for each in ids:
        of_type = _batch(IDS_SCHEMA, each.strings, pa.array(in_train[start : start + len(each.hashes)]))
        first = 0
        for count in each.num_ids.tolist():
            yield of_type.slice(first, count)
            first += count
        start += len(each.hashes)


def _batch(schema: pa.Schema, *columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
