"""Step 1: a chunk of raw rows -> its distinct ids, and its edges as numbers of these ids.

Only this step reads all strings: later steps read distinct ids and integers. Files of a chunk, in the work
folder:

    {chunk}.ids.arrow        id: string, train_count: int32 (edges of the train split with the id; -1: the id
                             is from a table of entities); one batch per slot of each partition of each type
    {chunk}.relations.arrow  name: string, train_count: int64; with dynamic relations only
    {chunk}.codes.arrow      lhs, rhs, rel: int32, positions in the files above (rel: in the configuration,
                             with static relations); split: uint8; weight: float32, if there are weights;
                             edge_hash: uint64, if edges of an unpartitioned type are to be spread;
                             lhs_features, rhs_features: int32, their number if featurized; lhs or rhs is -1
    {chunk}.{side}_features.i32   positions of the features of all edges, edge after edge
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.config import EntityTableConfig, TableConfig
from etl.steps import spill
from etl.steps.encode_rows import ChunkIds, ChunkRows, EncodedRows
from etl.steps.spill import Int32, Int64
from etl.steps.task_settings import TaskSettings
from etl.strings import hashing
from etl.strings.native import count, take
from etl.strings.table import Distinct
from etl.tables import quarantine
from etl.tables.check_rows import BadRows, BlockPosition, Rules
from etl.tables.formats import FileRange
from etl.tables.read import read_blocks
from graphmill import storage
from graphmill.vocab import Side

CHUNK_BYTES = 512 << 20  # a chunk with long ids ends at this size
IDS_SCHEMA = pa.schema([("id", pa.string()), ("train_count", pa.int32())])
RELATIONS_SCHEMA = pa.schema([("name", pa.string()), ("train_count", pa.int64())])
LISTED = -1


@dataclass(frozen=True, eq=False)
class Chunk:
    """An encoded chunk, as later steps need it; its content is in its files."""

    uri: str
    """Beginning of the URIs of its files."""
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
    """Chunks and counts of one file range."""

    chunks: list[Chunk] = field(default_factory=list)
    num_rows: int = 0
    num_self_loops: int = 0
    """Dropped self-loops."""
    num_bad: Counter[str] = field(default_factory=Counter)
    """Bad rows in quarantine, by reason."""


def encode_range(settings: TaskSettings, file_range: FileRange, number: int) -> Encoded:
    """Encode the rows of one file range, chunk by chunk."""
    encoder = _Encoder(settings, file_range, number)
    for position, block, bad in read_blocks(file_range, settings.chunk_rows, _rules(settings, file_range)):
        encoder.take(position, block, bad)
    encoder.end_chunk()
    return encoder.found


class _Encoder:
    """Encodes the blocks of one file range as chunks."""

    def __init__(self, settings: TaskSettings, file_range: FileRange, number: int) -> None:
        self.found = Encoded()
        self._settings = settings
        self._table = file_range.table
        self._number = number
        self._num_ended = 0
        self._start_chunk()

    def take(self, position: BlockPosition, block: pa.Table, bad: list[BadRows]) -> None:
        """Add a block, and end the chunk when it is full."""
        self.found.num_rows += block.num_rows
        self._num_rows += block.num_rows
        self._num_bytes += block.nbytes
        if block.num_rows:
            self._rows.add(block)
        for each in bad:
            self.found.num_rows += len(each.rows)
            self._num_rows += len(each.rows)
            self._bad.append((position, each))
        if self._num_rows >= self._settings.chunk_rows or self._num_bytes >= CHUNK_BYTES:
            self.end_chunk()

    def end_chunk(self) -> None:
        """Write the blocks added since the last chunk."""
        if self._bad and self._settings.folders.quarantine is not None:
            uri = quarantine.file_uri(self._settings.folders.quarantine, self._number, self._num_ended)
            quarantine.write_file(uri, self._bad)
            self.found.num_bad += quarantine.count_by_reason(self._bad)
        uri = storage.join(self._settings.folders.work, f"{self._number:06d}-{self._num_ended:06d}")
        if isinstance(self._rows, ChunkIds) and self._rows.num_rows:
            self.found.chunks.append(_write_listed(self._settings, self._rows, uri))
        elif isinstance(self._rows, ChunkRows):
            self.found.num_self_loops += self._rows.num_loops
            if self._rows.num_edges and isinstance(self._table, TableConfig):
                encoded = self._rows.finish()
                self.found.chunks.append(_write_edges(self._settings, self._table, encoded, uri))
        self._num_ended += 1
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._num_rows = self._num_bytes = 0
        self._bad: list[tuple[BlockPosition, BadRows]] = []
        self._rows: ChunkIds | ChunkRows
        if isinstance(self._table, EntityTableConfig):
            self._rows = ChunkIds(self._settings, self._table.type)
        elif isinstance(self._table, TableConfig):
            self._rows = ChunkRows(self._settings, self._table)


def _rules(settings: TaskSettings, file_range: FileRange) -> Rules:
    if not isinstance(file_range.table, TableConfig):
        return Rules(quarantines=settings.quarantines)
    return Rules(
        None if settings.dynamic else tuple(name for name, _, _ in settings.relations),
        frozenset(settings.feature_types(file_range.table)),
        file_range.table.feature_delimiter,
        settings.quarantines,
    )


def _write_listed(settings: TaskSettings, rows: ChunkIds, uri: str) -> Chunk:
    ids = rows.finish()
    counts = np.full(sum(map(len, ids)), LISTED, np.int32)
    return Chunk(uri, *_write_ids(settings, ids, counts, uri))


def _write_edges(settings: TaskSettings, table: TableConfig, rows: EncodedRows, uri: str) -> Chunk:
    rel_N = rows.columns["rel"]
    split = settings.splits.index(table.split)
    split_N = np.full(len(rel_N), split, np.uint8)
    names = pa.array(rows.relations, pa.string())
    columns = dict(rows.columns)
    draws = bool(settings.holdout) and split == settings.train
    if draws or settings.spreads:
        rel_hashes = hashing.hash_strings(names, settings.seed)
        # Times 3: an edge and its reverse are different edges.
        ends_N = hashing.mix(_end_hashes(rows, Side.LHS) * np.uint64(3) ^ _end_hashes(rows, Side.RHS))
        edge_hash_N = hashing.mix(ends_N ^ rel_hashes[rel_N])
        if draws:
            split_N = settings.draw_splits(edge_hash_N)
        if settings.spreads:
            columns["edge_hash"] = edge_hash_N
    columns["split"] = split_N

    train_N = split_N == settings.train
    num_ids, id_bytes = _write_ids(settings, rows.ids, _count_ids(rows, train_N), uri)
    for side, positions in rows.features.items():
        with spill.new_file(_features_uri(uri, side), settings.spill_options) as stream:
            stream.write(positions)
    relation_counts = np.bincount(rel_N[train_N], minlength=len(names))
    if settings.dynamic:
        batch = _batch(RELATIONS_SCHEMA, names, pa.array(relation_counts))
        spill.write_batches(f"{uri}.relations.arrow", RELATIONS_SCHEMA, [batch], settings.spill_options)
    codes_batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
    spill.write_batches(f"{uri}.codes.arrow", codes_batch.schema, [codes_batch], settings.spill_options)
    return Chunk(
        uri,
        num_ids,
        id_bytes,
        len(rel_N),
        len(names) if settings.dynamic else 0,
        np.zeros(0, np.int64) if settings.dynamic else relation_counts,
    )


def read_features(uri: str, side: Side, num_features: int) -> Int32:
    """Read the positions of the features of all edges of the chunk at `uri`, edge by edge."""
    return spill.read_ranges(_features_uri(uri, side), [(0, num_features)])[0]


def _features_uri(uri: str, side: Side) -> str:
    return f"{uri}.{side}_features.i32"


def _end_hashes(rows: EncodedRows, side: Side) -> hashing.Hashes:
    """Hash the entity on one side of each row; a list of features is hashed as a set."""
    hashes = np.concatenate([each.hashes for each in rows.ids])
    if side not in rows.features:
        return take(hashes, rows.columns[side])
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashing.mix(hashes[rows.features[side]]))])
    stops = np.cumsum(rows.columns[f"{side}_features"])
    of_lists: hashing.Hashes = sums[stops] - sums[stops - rows.columns[f"{side}_features"]]
    return of_lists


def _count_ids(rows: EncodedRows, train_N: npt.NDArray[np.bool_]) -> Int32:
    """Count the train edges of each of the chunk's ids."""
    num_ids = sum(map(len, rows.ids))
    counts = np.zeros(num_ids, np.int64)
    for side in Side:
        if side in rows.features:
            positions = rows.features[side][np.repeat(train_N, rows.columns[f"{side}_features"])]
        else:
            positions = rows.columns[side] if train_N.all() else rows.columns[side][train_N]
        counts += count(positions, num_ids)
    return counts.astype(np.int32)


def _write_ids(settings: TaskSettings, ids: list[Distinct], counts: Int32, uri: str) -> tuple[Int32, Int32]:
    """Write the chunk's ids slot by slot; return the ids per slot, and their bytes."""
    num_ids, id_bytes = [], []
    for entity_type, found in zip(settings.entity_types, ids, strict=True):
        num_slots = settings.num_partitions[entity_type] * settings.num_slots[entity_type]
        slots = hashing.scale(found.hashes, num_slots).astype(np.int64)
        lengths = pc.binary_length(found.strings).to_numpy()
        num_ids.append(np.bincount(slots, minlength=num_slots))
        id_bytes.append(np.bincount(slots, weights=lengths, minlength=num_slots))

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for found, of_type in zip(ids, num_ids, strict=True):
            stop = start + len(found)
            batch = _batch(IDS_SCHEMA, found.strings.cast(pa.string()), pa.array(counts[start:stop]))
            for first, length in zip((np.cumsum(of_type) - of_type).tolist(), of_type.tolist(), strict=True):
                yield batch.slice(first, length)
            start = stop

    spill.write_batches(f"{uri}.ids.arrow", IDS_SCHEMA, batches(), settings.spill_options)
    return np.concatenate(num_ids).astype(np.int32), np.concatenate(id_bytes).astype(np.int32)


def _batch(schema: pa.Schema, *columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
