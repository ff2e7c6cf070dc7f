"""Step 2: the distinct ids of all chunks -> one index per partition, ordered by (hash, raw id).

A partition is a range of hashes. If its ids do not fit the memory of a task, the range is cut into shards of
adjacent slots, one task each (`index_shard`), and the shards are joined; the result is the same. Ids of an
earlier index come first, with their old indices. In the work folder:

    relations.rows.i32        a section per chunk; per relation name of the chunk: its number; -1, left out
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps import index_shard, spill
from etl.steps.bucket_rows import EarlierIds
from etl.steps.chunks import EdgeChunk
from etl.steps.encode import RELATIONS_SCHEMA, REMOVES
from etl.steps.index_previous import history_of, history_within, previous_ids, previous_relations
from etl.steps.index_shard import LEFT_OUT, ROW_GROUP_ROWS, IndexedShard, Shard, new_ids_uri, num_passes
from etl.steps.task_settings import ID_OVERHEAD_BYTES, Partition, TaskSettings
from etl.strings.table import distinct
from etl.tables.blocks import ranges_within
from graphmill import storage
from graphmill.checkpoints.graphstorm import id_maps
from graphmill.errors import RawTableError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.raw_tables import cut
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int32, Int64

MAX_INDEX = np.iinfo(np.int32).max
MAX_COUNTED_RELATIONS = 1000
RELATION_ROWS = "relations.rows.i32"

Group = TypeVar("Group", int, str)


@dataclass(frozen=True)
class IndexedRelations:
    """Counts of relations."""

    num_relations: int
    num_left_out: int
    numbers: Int32
    """[relations] number of each static relation; -1: it is left out."""
    names: tuple[str, ...] | None
    """None: too many to count edges by relation."""
    checksums: Checksums
    """Checksums of the files of relation names and counts."""


@dataclass(frozen=True)
class IndexedEntities:
    """Result of the step."""

    shards: list[Shard]
    indexed: list[IndexedShard]
    num_previous: list[int]
    """Ids of an earlier index that are not forgotten, by partition."""
    num_entities: list[int]
    """Entities, by partition."""
    relations: IndexedRelations
    checksums: Checksums
    """Checksums of all files of the index."""
    num_gone: list[int]
    """Ids that no row names, by partition; of a run that forgets ids."""
    num_forgotten: list[int]
    """Ids of the earlier index that are left out, by partition."""


def plan_shards(settings: TaskSettings, num_ids: Int64, id_bytes: Int64) -> list[Shard]:
    """Cut partitions into shards that can be sorted within `index_bytes`, of one slot at least.

    `num_ids` [slots of all partitions] counts each id once per chunk; `id_bytes` are the bytes of these ids.
    """
    shards: list[Shard] = []
    budget_bytes = settings.etl.index_bytes
    for partition_number, costs in enumerate(
        settings.by_partition(num_ids * ID_OVERHEAD_BYTES + id_bytes * 3)
    ):
        for number, slots in enumerate(ranges_within(costs.tolist(), budget_bytes)):
            count = 1 if len(slots) > 1 else num_passes(int(costs[slots.start]), budget_bytes)
            shards.append(Shard(partition_number, number, slots, max(count, 1)))
    return shards


def count_entities(shards: list[Shard], indexed: list[IndexedShard], num_previous: list[int]) -> list[int]:
    """Count the entities of each partition."""
    counts = list(num_previous)
    for shard, of_shard in zip(shards, indexed, strict=True):
        counts[shard.partition_number] += of_shard.num_new
    if max(counts) > MAX_INDEX:
        raise RawTableError(
            f"a partition has {max(counts)} ids, of {MAX_INDEX} at most; raise num_partitions of its type"
        )
    return counts


def counts_before(groups: Sequence[Group], counts: list[int], ends: Counter[Group]) -> list[int]:
    """Return, for each item, the sum of the counts of earlier items of its group, from `ends` on."""
    before = []
    for group, count in zip(groups, counts, strict=True):
        before.append(ends[group])
        ends[group] += count
    return before


def write_partition(
    settings: TaskSettings,
    partition: Partition,
    shards: list[Shard],
    first_id: int,
    earlier: EarlierIds | None,
) -> tuple[Checksums, int]:
    """Write a partition's entity index, its count, and optional files.

    Earlier partitions have `first_id` ids of the same type. In a run that forgets ids, `earlier` has edges
    that name ids of the earlier index, as the chunks do.

    Returns:
        the checksums of the files, and the number of gone ids of a run that forgets ids.
    """
    known = None
    if settings.today is not None:
        named = (index_shard.read_named(settings, shard) for shard in shards)
        known = history_of(settings, partition, named, earlier)
    place = (settings.folders.entities, *partition)
    checksums: Checksums = {}
    num_entities = 0
    previous = (pa.table({"id": ids}) for ids in previous_ids(settings, partition))
    new = (rows for shard in shards for rows in spill.iter_batches(new_ids_uri(settings, shard)))
    with entity_index.new_part(*place, checksums, has_history=known is not None) as writer:
        for block in cut(chain(previous, new), ROW_GROUP_ROWS):
            start, num_entities = num_entities, num_entities + block.num_rows
            of_block = None if known is None else history_within(known, start, num_entities)
            writer.append(pa.concat_arrays(block["id"].chunks), of_block)
    entity_counts.write_count(*place, num_entities, checksums)
    if settings.etl.entity_names:
        names = (name for batch in entity_index.iter_part(*place) for name in batch.to_pylist())
        entity_counts.write_entity_names(*place, names, checksums)
    if settings.etl.graphstorm_maps:
        id_maps.write_raw_id_map(*place, first_id, entity_index.iter_part(*place), checksums)
    return checksums, 0 if known is None else int((known.gone_since != entity_index.HERE).sum())


def static_relations(settings: TaskSettings, counts: Int64) -> IndexedRelations:
    """Count the train edges of the configured relations; PBG's export reads relation names from the index."""
    names = [relation.name for relation in settings.relations]
    checksums: Checksums = {}
    if settings.etl.entity_names:
        entity_counts.write_relation_names(settings.folders.entities, names, checksums)
    numbers = np.where(counts < settings.etl.min_relation_count, LEFT_OUT, np.arange(len(counts)))
    return _indexed_relations(names, int((numbers == LEFT_OUT).sum()), numbers.astype(np.int32), checksums)


def _indexed_relations(
    names: Collection[str], num_left_out: int, numbers: Int32, checksums: Checksums
) -> IndexedRelations:
    shown = tuple(names) if len(names) <= MAX_COUNTED_RELATIONS else None
    return IndexedRelations(len(names), num_left_out, numbers, shown, checksums)


def index_relations(settings: TaskSettings, chunks: list[EdgeChunk]) -> IndexedRelations:
    """Number relation names: those of an earlier index, then others by UTF-8 bytes. Write names and count."""
    uris = [storage.join(settings.folders.work, f"{chunk.name}.relations.arrow") for chunk in chunks]
    none = RELATIONS_SCHEMA.empty_table()
    tables = [spill.read_batches(uri) if of.num_edges else none for uri, of in zip(uris, chunks, strict=True)]
    table = pa.concat_tables([none, *tables])
    relations, codes = distinct(table["name"], settings.seed)
    train_counts = table["train_count"].to_numpy()
    counts = np.bincount(codes, np.maximum(train_counts, 0), minlength=len(relations))
    is_named = np.zeros(len(relations), bool)  # not only by rows that take out edges
    is_named[codes[train_counts != REMOVES]] = True
    names = relations.strings.to_pylist()
    number_of = {name: number for number, name in enumerate(previous_relations(settings))}
    num_left_out = 0
    for at in pc.sort_indices(relations.strings).to_pylist():
        if is_named[at] and names[at] not in number_of:
            if counts[at] < settings.etl.min_relation_count:
                num_left_out += 1
            else:
                number_of[names[at]] = len(number_of)
    numbers = np.array([number_of.get(name, LEFT_OUT) for name in names], np.int32)
    starts = np.cumsum([0, *map(len, tables)], dtype=np.int64)
    rows_uri = storage.join(settings.folders.work, RELATION_ROWS)
    spill.write_records(rows_uri, starts, numbers[codes], settings.etl)
    checksums: Checksums = {}
    entity_counts.write_relation_count(settings.folders.entities, len(number_of), checksums)
    entity_counts.write_relation_names(settings.folders.entities, list(number_of), checksums)
    return _indexed_relations(number_of, num_left_out, numbers[:0], checksums)


def shard_bounds(settings: TaskSettings, shards: list[Shard]) -> Int64:
    """Return the first slot of each shard, among those of all partitions, and the number of all slots."""
    first_slots = settings.first_slots
    starts = [first_slots[shard.partition_number] + shard.slots.start for shard in shards]
    return np.array([*starts, first_slots[-1]], np.int64)
