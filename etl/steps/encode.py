"""Step 1: a chunk of raw rows -> its distinct ids, and its edges as numbers of these ids.

Only this step reads all strings: later steps read distinct ids and integers. Files of a chunk, in the work
folder:

    {chunk}.ids              id: string, train_count: int32 (edges of the train split with the id; -1: the id
                             is from a table of entities; -2: the rows of the chunk are no edges, but take out
                             edges); a section per slot of each partition of each type
    {chunk}.relations.arrow  name: string, train_count: int64; with dynamic relations only
    {chunk}.codes.arrow      lhs, rhs, rel: int32, positions in the files above (rel: in the configuration,
                             with static relations); split: uint8; weight: float32, if there are weights;
                             edge_hash: uint64, if edges of an unpartitioned type are to be spread;
                             lhs_features, rhs_features: lists of positions, if featurized; lhs or rhs is -1
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps import spill
from etl.steps.chunks import NUM_SMALLEST, EdgeChunk, Encoded, IdCounts, RowCounts
from etl.steps.encode_rows import ChunkIds, ChunkRows, EncodedRows
from etl.steps.spill import Shared
from etl.steps.task_settings import TaskSettings
from etl.strings import native
from etl.strings.native import count, take
from etl.tables import quarantine
from etl.tables.check_rows import NULL_WORDS, BadRows, Rules
from etl.tables.formats import FileRange
from etl.tables.read import Block, read_blocks
from graphmill import storage
from graphmill.config.sections.etl import EntityTableConfig, Table, TableConfig
from graphmill.formats.murmur import Hashes, draw_shares, hash_edges, mix
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import TRAIN_SPLIT, Side

CHUNK_BYTES = 512 << 20  # a chunk with long ids ends at this size
IDS_SCHEMA = pa.schema([("id", pa.string()), ("train_count", pa.int32())])
RELATIONS_SCHEMA = pa.schema([("name", pa.string()), ("train_count", pa.int64())])
LISTED = -1
REMOVES = -2


def encode_ranges(
    shared: Shared[TaskSettings], ranges: Sequence[FileRange], number: int
) -> tuple[Encoded, IdCounts]:
    """Encode the rows of file ranges of one table, chunk by chunk; a chunk may span several ranges."""
    settings = shared.read()
    group, counts = Encoded(), no_ids(settings)
    table, chunk_rows = ranges[0].table, settings.etl.chunk_rows
    assert isinstance(table, TableConfig | EntityTableConfig)  # a run's tables are of these
    rules, makes_edges = _rules(settings, table), isinstance(table, TableConfig) and not table.removes
    blocks = (
        (file_range.number, block)
        for file_range in ranges
        for block in read_blocks(file_range, chunk_rows, rules)
    )
    for chunk_number, of_chunk in groupby(blocks, key=_chunk_numbers(chunk_rows)):
        rows: ChunkRows | ChunkIds = (
            ChunkRows(settings, table) if isinstance(table, TableConfig) else ChunkIds(settings, table)
        )
        num_kept: Counter[int] = Counter()
        all_bad: list[BadRows] = []
        for file, (block, bad) in of_chunk:
            kept = rows.add(block) if block.num_rows else 0
            num_kept[file] += kept
            all_bad += bad
            _count(group.files.setdefault(file, RowCounts()), block.num_rows, kept, bad, makes_edges)
        if all_bad and settings.folders.quarantine is not None:
            quarantine.write_file(settings.folders.quarantine, number, chunk_number, all_bad)
        if any(num_kept.values()):
            name = f"{number:06d}-{chunk_number:06d}"
            encoded = rows.finish()
            chunk, of_chunk_ids = _write_chunk(settings, table, encoded, name)
            _add_null_words(group.null_words, settings, encoded)
            files = tuple((file, kept) for file, kept in num_kept.items() if kept)
            group.chunks.append(replace(chunk, files=files if chunk.num_edges else ()))
            counts += of_chunk_ids
    return group, counts


def _add_null_words(words_of: dict[str, list[str]], settings: TaskSettings, rows: EncodedRows) -> None:
    for entity_type, ids in zip(settings.entity_types, rows.ids, strict=True):
        words = ids.strings.filter(pc.is_in(ids.strings, NULL_WORDS.cast(ids.strings.type))).to_pylist()
        if words:
            words_of[entity_type] = sorted({*words_of.get(entity_type, ()), *words})


def _count(
    counts: RowCounts, num_good: int, num_kept: int, bad: Sequence[BadRows], makes_edges: bool
) -> None:
    counts.num_rows += num_good
    counts.num_edges += num_kept if makes_edges else 0
    counts.num_self_loops += num_good - num_kept
    for rows in bad:
        counts.num_rows += len(rows.rows)
        counts.num_bad[rows.reason] += len(rows.rows)
    quarantine.count_unknown_relations(bad, counts.num_unknown)


def no_ids(settings: TaskSettings) -> IdCounts:
    """Return counts of nothing, to which those of chunks are added."""
    none, num_relations = np.zeros(settings.first_slots[-1], np.int64), len(settings.relations)
    return IdCounts(none, none, np.zeros(0 if settings.dynamic else num_relations, np.int64), {})


def _chunk_numbers(chunk_rows: int) -> Callable[[tuple[int, Block]], int]:
    """Return a function that numbers the chunk of each block; a chunk ends with the block that fills it."""
    number = num_rows = num_bytes = 0

    def chunk_number(numbered: tuple[int, Block]) -> int:
        nonlocal number, num_rows, num_bytes
        _, (good, bad) = numbered
        if num_rows >= chunk_rows or num_bytes >= CHUNK_BYTES:
            number, num_rows, num_bytes = number + 1, 0, 0
        num_rows += good.num_rows + sum(len(rows.rows) for rows in bad)
        num_bytes += good.nbytes + sum(rows.block.nbytes for rows in bad)
        return number

    return chunk_number


def _rules(settings: TaskSettings, table: Table) -> Rules:
    quarantines = settings.etl.on_bad_row == "quarantine"
    if not isinstance(table, TableConfig):
        return Rules(quarantines=quarantines)
    return Rules(
        None if settings.dynamic else tuple(relation.name for relation in settings.relations),
        frozenset(settings.feature_types(table)),
        table.feature_delimiter,
        quarantines,
    )


def _write_chunk(
    settings: TaskSettings, table: Table, rows: EncodedRows, name: str
) -> tuple[EdgeChunk, IdCounts]:
    uri = storage.join(settings.folders.work, name)
    none = no_ids(settings)
    if not isinstance(table, TableConfig):
        counts = np.full(sum(map(len, rows.ids)), LISTED, np.int32)
        ids = _write_ids(settings, rows, counts, uri)
        return EdgeChunk(name), IdCounts(*ids, none.relation_counts, _smallest(settings, rows))
    rel_N = rows.columns["rel"]
    split_N = np.full(len(rel_N), settings.splits.index(table.split), np.uint8)
    columns = dict(rows.columns)
    draws = bool(settings.etl.holdout) and table.split == TRAIN_SPLIT
    if draws or settings.spreads:
        rel_hashes = native.hash_strings(pa.array(rows.relations, pa.string()), settings.seed)
        lhs_N, rhs_N = (_end_hashes(rows, side) for side in Side)
        edge_hash_N = hash_edges(lhs_N, rel_hashes[rel_N], rhs_N)
        if draws:
            split_N = _draw_splits(settings, edge_hash_N)
        if settings.spreads:
            columns["edge_hash"] = edge_hash_N
    columns["split"] = split_N
    train_N = split_N == settings.splits.index(TRAIN_SPLIT)
    id_counts = _count_ids(rows, train_N)
    ids = _write_ids(settings, rows, np.full_like(id_counts, REMOVES) if table.removes else id_counts, uri)
    relation_counts = np.bincount(rel_N[train_N], minlength=len(rows.relations))
    if table.removes:
        relation_counts = np.full_like(relation_counts, REMOVES if settings.dynamic else 0)
    lists = {f"{side}_features": of_side for side, of_side in rows.features.items()}
    batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()} | lists)
    spill.write_batches(f"{uri}.codes.arrow", batch.schema, [batch], settings.etl)
    if settings.dynamic:
        names = pa.array(rows.relations, pa.string())
        batch = pa.record_batch([names, pa.array(relation_counts)], schema=RELATIONS_SCHEMA)
        spill.write_batches(f"{uri}.relations.arrow", RELATIONS_SCHEMA, [batch], settings.etl)
        relation_counts = none.relation_counts
    counts_of_ids = IdCounts(*ids, relation_counts, _smallest(settings, rows))
    return EdgeChunk(name, len(rel_N), removes=table.removes), counts_of_ids


def _smallest(settings: TaskSettings, rows: EncodedRows) -> dict[str, Hashes]:
    by_type = zip(settings.entity_types, rows.ids, strict=True)
    return {name: ids.hashes[:NUM_SMALLEST] for name, ids in by_type if name in settings.uncut}


def _draw_splits(settings: TaskSettings, edge_hash_N: Hashes) -> npt.NDArray[np.uint8]:
    """Draw the split of each edge of a train table from the edge's hash alone."""
    holdout = settings.etl.holdout
    numbers = np.array([settings.splits.index(name) for name in (*holdout, TRAIN_SPLIT)], np.uint8)
    return numbers[draw_shares(edge_hash_N, list(holdout.values()))]


def _end_hashes(rows: EncodedRows, side: Side) -> Hashes:
    """Hash the entity on one side of each row; a list of features is hashed as a set."""
    hashes = np.concatenate([of_type.hashes for of_type in rows.ids])
    if side not in rows.features:
        return take(hashes, rows.columns[side])
    lists = rows.features[side]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix(hashes[lists.values.to_numpy()]))])
    of_lists: Hashes = np.diff(sums[lists.offsets.to_numpy()])
    return of_lists


def _count_ids(rows: EncodedRows, train_N: npt.NDArray[np.bool_]) -> Int32:
    num_ids = sum(map(len, rows.ids))
    counts = np.zeros(num_ids, np.int64)
    for side in Side:
        if side in rows.features:
            positions = rows.features[side].filter(pa.array(train_N)).flatten().to_numpy()
        else:
            positions = rows.columns[side] if train_N.all() else rows.columns[side][train_N]
        counts += count(positions, num_ids)
    return counts.astype(np.int32)


def _write_ids(settings: TaskSettings, rows: EncodedRows, counts: Int32, uri: str) -> tuple[Int64, Int64]:
    slot_counts = []
    for entity_type, distinct in zip(settings.entity_types, rows.ids, strict=True):
        num_slots = settings.num_partitions[entity_type] * settings.num_slots[entity_type]
        slots = settings.slots_of(entity_type, distinct.hashes)
        slot_counts.append(spill.count_slots(distinct.strings, slots, num_slots))
    num_ids, id_bytes = zip(*slot_counts, strict=True)

    def sorted_ids() -> Iterator[tuple[pa.RecordBatch, Int64]]:
        start = 0
        for distinct, of_type in zip(rows.ids, num_ids, strict=True):
            stop = start + len(distinct)
            columns = [distinct.strings.cast(pa.string()), pa.array(counts[start:stop])]
            yield pa.record_batch(columns, schema=IDS_SCHEMA), of_type
            start = stop

    spill.write_slots(f"{uri}.ids", IDS_SCHEMA, sorted_ids(), settings.etl)
    return np.concatenate(num_ids), np.concatenate(id_bytes)
