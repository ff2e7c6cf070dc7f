"""Step 1: each chunk of raw rows -> its distinct ids, and its edges as numbers into them.

Strings are touched once, here. What the other steps exchange are distinct ids and integers. The files of
a chunk, in the work folder:

    {chunk}.ids.arrow        id: string, train_count: int32 (edges of the train split that the id occurs in;
                             -1: a table of entities lists it); a batch a slot of each partition of each type
    {chunk}.relations.arrow  name: string, train_count: int64; with dynamic relations only
    {chunk}.codes.arrow      lhs, rhs, rel: int32, positions in the files above (rel: in the configuration,
                             with static relations); split: uint8; weight: float32, if there are weights;
                             edge_hash: uint64, if edges of an unpartitioned type are to be spread;
                             lhs_features, rhs_features: int32, how many, and lhs or rhs -1, if featurized
    {chunk}.{side}_features.i32   positions of the features of all edges, edge after edge
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl import hashing, quarantine, spill
from etl.check_rows import BadRows, Place, Rules
from etl.config import EntityTableConfig, TableConfig
from etl.distinct import Distinct, distinct
from etl.layout import Layout
from etl.read_tables import read_blocks
from etl.sources import Source
from etl.spill import Int32, Int64
from graphmill import storage
from graphmill.vocab import Side

IDS_SCHEMA = pa.schema([("id", pa.string()), ("train_count", pa.int32())])
RELATIONS_SCHEMA = pa.schema([("name", pa.string()), ("train_count", pa.int64())])
LISTED = -1
_TYPE_AT = {Side.LHS: 1, Side.RHS: 2}  # position of a side's type in a relation of the layout


@dataclass(frozen=True, eq=False)
class Chunk:
    """What the other steps need to know of an encoded chunk; the rest is in its files."""

    uri: str
    """What its files' names start with."""
    num_ids: Int32
    """[slots of all partitions] distinct ids."""
    id_bytes: Int32
    """[slots of all partitions] bytes of these ids."""
    num_edges: int = 0
    num_relations: int = 0
    """Distinct relation names, with dynamic relations."""
    relation_counts: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Train edges of each relation, with static relations."""


@dataclass
class Encoded:
    """What came of one source."""

    chunks: list[Chunk] = field(default_factory=list)
    num_rows: int = 0
    num_self_loops: int = 0
    """Loops that were dropped."""
    num_bad: Counter[str] = field(default_factory=Counter)
    """Rows set aside, by reason."""


@dataclass(frozen=True, eq=False)
class _Ends:
    """Positions of the edges' ends among the chunk's distinct ids."""

    ids: list[Distinct]
    """By type; positions count through all types."""
    codes: dict[Side, Int32]
    features: dict[Side, Int32]
    num_features: dict[Side, Int32]


def encode_source(layout: Layout, source: Source, number: int) -> Encoded:
    """Encode the rows of one source, chunk by chunk."""
    found = Encoded()
    rules = _rules(layout, source)
    blocks = read_blocks(source, layout.chunk_rows, rules)
    for block_number, (place, block, bad) in enumerate(blocks):
        uri = storage.join(layout.folders.work, f"{number:06d}-{block_number:06d}")
        found.num_rows += block.num_rows + _set_aside(layout, number, block_number, place, bad, found)
        if block.num_rows and isinstance(source.table, EntityTableConfig):
            found.chunks.append(_encode_entities(layout, source.table.type, block, uri))
        elif block.num_rows and isinstance(source.table, TableConfig):
            num_loops, chunk = _encode(layout, source.table, block, uri)
            found.num_self_loops += num_loops
            found.chunks += [chunk] if chunk else []
    return found


def feature_types(layout: Layout, table: TableConfig) -> dict[Side, str]:
    """The featurized type of each side of a table that has one; its rows all have the same."""
    if not layout.featurized:
        return {}
    entries = [each for each in layout.relations if layout.dynamic or table.relation in (None, each[0])]
    types = {side: {each[_TYPE_AT[side]] for each in entries} for side in Side}
    return {side: min(found) for side, found in types.items() if found & layout.featurized}


def _rules(layout: Layout, source: Source) -> Rules:
    if not isinstance(source.table, TableConfig):
        return Rules(sets_bad_rows_aside=layout.quarantines)
    return Rules(
        None if layout.dynamic else tuple(name for name, _, _ in layout.relations),
        frozenset(feature_types(layout, source.table)),
        source.table.feature_delimiter,
        layout.quarantines,
    )


def _set_aside(
    layout: Layout, number: int, block_number: int, place: Place, bad: list[BadRows], found: Encoded
) -> int:
    """Write the bad rows of a block; how many they are."""
    if not bad or layout.folders.quarantine is None:
        return 0
    placed = [(place, each) for each in bad]
    quarantine.write_part(quarantine.part_uri(layout.folders.quarantine, number, block_number), placed)
    counts = quarantine.count_by_reason(placed)
    found.num_bad += counts
    return counts.total()


def _encode_entities(layout: Layout, entity_type: str, block: pa.Table, uri: str) -> Chunk:
    ids = {name: pa.chunked_array([], pa.string()) for name in layout.entity_types} | {
        entity_type: block["id"]
    }
    encoded = [distinct(column, layout.seed) for column in ids.values()]
    counts = np.full(sum(len(each.strings) for each in encoded), LISTED, np.int32)
    return Chunk(uri, *_write_ids(layout, encoded, counts, uri))


def _encode(layout: Layout, table: TableConfig, block: pa.Table, uri: str) -> tuple[int, Chunk | None]:
    """Number of loops dropped, and the chunk, if edges are left."""
    rel_N, names = _encode_relations(layout, table, block)
    num_rows = block.num_rows
    if layout.drops_loops:
        kept_N = ~_loops(layout, table, block, rel_N)
        block, rel_N = block.filter(pa.array(kept_N)), rel_N[kept_N]
        if not block.num_rows:
            return num_rows, None
    ends = _encode_ends(layout, table, block, rel_N)
    columns: dict[str, Any] = {"lhs": ends.codes[Side.LHS], "rhs": ends.codes[Side.RHS], "rel": rel_N}
    columns |= {f"{side}_features": counts for side, counts in ends.num_features.items()}
    split = layout.splits.index(table.split)
    columns["split"] = np.full(len(rel_N), split, np.uint8)
    draws = bool(layout.holdout) and split == layout.train
    if draws or layout.spreads:
        rel_hashes = hashing.hash_strings(names, layout.seed)
        # 3: an edge and its reverse are two edges.
        ends_N = hashing.mix(_end_hashes(ends, Side.LHS) * np.uint64(3) ^ _end_hashes(ends, Side.RHS))
        edge_hash_N = hashing.mix(ends_N ^ rel_hashes[rel_N])
        if draws:
            columns["split"] = layout.draw_splits(edge_hash_N)
        if layout.spreads:
            columns["edge_hash"] = edge_hash_N
    if layout.weighted:
        weighted = "weight" in block.column_names
        columns["weight"] = block["weight"].to_numpy() if weighted else np.ones(len(rel_N), np.float32)

    train_N = columns["split"] == layout.train
    num_ids, id_bytes = _write_ids(layout, ends.ids, _count_ids(ends, train_N), uri)
    for side, codes in ends.features.items():
        with spill.new_file(_features_uri(uri, side)) as stream:
            stream.write(codes)
    relation_counts = np.bincount(rel_N[train_N], minlength=len(names))
    if layout.dynamic:
        batch = _batch(RELATIONS_SCHEMA, names, pa.array(relation_counts))
        spill.write_batches(f"{uri}.relations.arrow", RELATIONS_SCHEMA, [batch])
    codes_batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
    spill.write_batches(f"{uri}.codes.arrow", codes_batch.schema, [codes_batch])
    return num_rows - len(rel_N), Chunk(
        uri,
        num_ids,
        id_bytes,
        len(rel_N),
        len(names) if layout.dynamic else 0,
        np.zeros(0, np.int64) if layout.dynamic else relation_counts,
    )


def read_features(uri: str, side: Side, num_features: int) -> Int32:
    """Positions of the features of all edges of the chunk at `uri`, edge after edge."""
    return spill.read_ranges(_features_uri(uri, side), [(0, num_features)])[0]


def _features_uri(uri: str, side: Side) -> str:
    return f"{uri}.{side}_features.i32"


def _encode_relations(layout: Layout, table: TableConfig, block: pa.Table) -> tuple[Int32, pa.Array]:
    """Number of each row's relation, and the names that are numbered.

    With static relations these are the configuration's; with dynamic ones, those of the chunk.
    """
    known = [name for name, _, _ in layout.relations]
    if table.relation is not None:
        names = [table.relation] if layout.dynamic else known
        return np.full(block.num_rows, names.index(table.relation), np.int32), pa.array(names, pa.string())
    chunks = block["relation"].chunks
    code_N = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    found: pa.Array = chunks[0].dictionary
    # A dictionary may hold names that no row of this chunk has.
    used = np.flatnonzero(np.bincount(code_N, minlength=len(found)))
    number_of = np.zeros(len(found), np.int32)
    if layout.dynamic:
        number_of[used] = np.arange(len(used))
        return number_of[code_N], found.take(pa.array(used))
    number_of[used] = [known.index(found[code].as_py()) for code in used]
    return number_of[code_N], pa.array(known, pa.string())


def _loops(layout: Layout, table: TableConfig, block: pa.Table, rel_N: Int32) -> npt.NDArray[np.bool_]:
    """Rows that have one entity at both ends; lists of features are none."""
    if feature_types(layout, table):
        return np.zeros(block.num_rows, bool)
    same_type = np.array([lhs == rhs for _, lhs, rhs in layout.relations])
    type_N = same_type[np.zeros_like(rel_N) if layout.dynamic else rel_N]
    loops: npt.NDArray[np.bool_] = pc.equal(block["lhs"], block["rhs"]).to_numpy() & type_N
    return loops


def _encode_ends(layout: Layout, table: TableConfig, block: pa.Table, rel_N: Int32) -> _Ends:
    """Positions of both ends of all rows, type by type."""
    featurized = feature_types(layout, table)
    rows = {side: _rows_of_types(layout, side, rel_N) for side in Side}
    ends = _Ends([], {side: np.full(block.num_rows, -1, np.int32) for side in Side}, {}, {})
    num_earlier = 0
    for entity_type in layout.entity_types:
        strings = {
            side: _features(block[side])
            if side in featurized
            else _selected(block[side], rows[side][entity_type])
            for side in Side
            if entity_type in rows[side]
        }
        found = distinct(
            pa.chunked_array([c for s in strings.values() for c in s.chunks], pa.string()), layout.seed
        )
        start = 0
        for side, column in strings.items():
            codes = found.code_N[start : start + len(column)] + np.int32(num_earlier)
            start += len(column)
            if side in featurized:
                ends.features[side] = codes
                lists = pc.list_value_length(block[side]).to_numpy()
                ends.num_features[side] = lists.astype(np.int32)
                continue
            mask = rows[side][entity_type]
            ends.codes[side][slice(None) if mask is None else mask] = codes
        ends.ids.append(found)
        num_earlier += len(found.strings)
    return ends


def _rows_of_types(layout: Layout, side: Side, rel_N: Int32) -> dict[str, npt.NDArray[np.bool_] | None]:
    """Which rows have an entity of which type on `side`; None: all rows."""
    types = [relation[_TYPE_AT[side]] for relation in layout.relations]
    present = types if layout.dynamic else [types[number] for number in np.flatnonzero(np.bincount(rel_N))]
    if len(set(present)) == 1:
        return {present[0]: None}
    type_numbers = np.array([layout.entity_types.index(name) for name in types])
    type_N = type_numbers[rel_N]
    return {name: type_N == layout.entity_types.index(name) for name in set(present)}


def _selected(column: pa.ChunkedArray, mask: npt.NDArray[np.bool_] | None) -> pa.ChunkedArray:
    return column if mask is None else column.filter(pa.array(mask))


def _features(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.flatten() for chunk in column.chunks], pa.string())


def _end_hashes(ends: _Ends, side: Side) -> hashing.Hashes:
    """A hash of each row's end; of a list of features, of their set."""
    hashes = np.concatenate([each.hashes for each in ends.ids])
    if side not in ends.features:
        return hashes[ends.codes[side]]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashing.mix(hashes[ends.features[side]]))])
    stops = np.cumsum(ends.num_features[side])
    of_lists: hashing.Hashes = sums[stops] - sums[stops - ends.num_features[side]]
    return of_lists


def _count_ids(ends: _Ends, train_N: npt.NDArray[np.bool_]) -> Int32:
    """Train edges that each of the chunk's ids occurs in."""
    num_ids = sum(len(each.strings) for each in ends.ids)
    counts = np.zeros(num_ids, np.int64)
    for side in Side:
        if side in ends.features:
            codes = ends.features[side][np.repeat(train_N, ends.num_features[side])]
        else:
            codes = ends.codes[side] if train_N.all() else ends.codes[side][train_N]
        counts += np.bincount(codes, minlength=num_ids)
    return counts.astype(np.int32)


def _write_ids(layout: Layout, ids: list[Distinct], counts: Int32, uri: str) -> tuple[Int32, Int32]:
    """Write the chunk's ids slot by slot; the number of each slot's ids, and of their bytes."""
    num_ids, id_bytes = [], []
    for entity_type, found in zip(layout.entity_types, ids, strict=True):
        num_slots = layout.num_partitions[entity_type] * layout.num_slots[entity_type]
        slots = hashing.scale(found.hashes, num_slots).astype(np.int64)
        lengths = pc.binary_length(found.strings).to_numpy()
        num_ids.append(np.bincount(slots, minlength=num_slots))
        id_bytes.append(np.bincount(slots, weights=lengths, minlength=num_slots))

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for found, of_type in zip(ids, num_ids, strict=True):
            stop = start + len(found.strings)
            batch = _batch(IDS_SCHEMA, found.strings, pa.array(counts[start:stop]))
            for first, count in zip((np.cumsum(of_type) - of_type).tolist(), of_type.tolist(), strict=True):
                yield batch.slice(first, count)
            start = stop

    spill.write_batches(f"{uri}.ids.arrow", IDS_SCHEMA, batches())
    return np.concatenate(num_ids).astype(np.int32), np.concatenate(id_bytes).astype(np.int32)


def _batch(schema: pa.Schema, *columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
