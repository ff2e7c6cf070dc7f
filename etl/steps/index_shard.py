"""One task of step 2: the ids of a shard -> their order, and the rows of each chunk's ids.

A shard is a range of adjacent slots of a partition whose ids fit the memory of a task. If the ids of a single
slot do not fit, for example because they share a hash, they are sorted in several passes. Files, in the work
folder:

    {type}-{partition}-{shard}.arrow      id: string; the shard's new ids, in the order of their indices
    {type}-{partition}-{shard}.rows.i32   per chunk, per id: r >= 0, the r-th new id of the shard; -1, left
                                          out; else -2 - index of an id of the earlier index
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.steps import spill
from etl.steps.degrees import DegreeCounts, count_degrees, merge_counts
from etl.steps.encode import LISTED
from etl.steps.index_passes import KeyRange, key_ranges
from etl.steps.index_previous import PreviousBlock
from etl.steps.task_settings import TaskSettings
from etl.strings import hashing
from etl.strings.native import take
from etl.strings.table import Distinct, distinct
from graphmill import storage
from graphmill.storage.as_json import Int32, Int64, Range

ROW_GROUP_ROWS = 1 << 20
LEFT_OUT = -1
NUM_HIGHEST = 10
MAX_SHOWN_CHARS = 200  # longer ids are not shown in run.json
_SHARD_SCHEMA = pa.schema([("id", pa.string())])


@dataclass(frozen=True)
class Shard:
    """Adjacent slots of a partition, whose ids one task sorts."""

    partition_number: int
    number: int
    slots: Range
    """Numbers among the partition's slots."""
    num_passes: int = 1
    """More than 1 if the ids of a single slot do not fit the memory."""


@dataclass(frozen=True)
class IndexedShard:
    """Counts of one shard."""

    num_new: int
    num_outside_train: int
    num_left_out: int
    degrees: DegreeCounts
    highest: list[tuple[int, str]]
    """Most train edges of an id, and the id, most first."""
    num_by_slot: Int64
    """[slots of the shard] distinct ids."""


def rows_uri(settings: TaskSettings, shard: Shard) -> str:
    """URI of the file of the rows of each chunk's ids in the shard."""
    return f"{shard_uri(settings, shard)}.rows.i32"


def shard_uri(settings: TaskSettings, shard: Shard) -> str:
    """Beginning of the URIs of the shard's files."""
    partition = settings.partitions()[shard.partition_number]
    return storage.join(settings.folders.work, f"{partition.entity_type}-{partition.number}-{shard.number}")


def index_shard(
    settings: TaskSettings, shard: Shard, chunk_uris: list[str], previous: list[PreviousBlock]
) -> IndexedShard:
    """Sort the ids of one shard, and write its two files."""
    first_slot = settings.partition_slots()[shard.partition_number].start
    batches = [first_slot + slot for slot in shard.slots]

    def read(keys: KeyRange) -> tuple[_Read, _Read]:
        # One batch per slot of this one partition.
        earlier = _Read.of((spill.read_batches(block.uri, shard.slots) for block in previous), keys, settings)
        chunks = (spill.read_batches(f"{uri}.ids.arrow", batches) for uri in chunk_uris)
        return earlier, _Read.of(chunks, keys, settings)

    ranges = [KeyRange()]
    if shard.num_passes > 1:
        blocks = (spill.read_batches(f"{uri}.ids.arrow", batches)["id"] for uri in chunk_uris)
        earlier_blocks = (spill.read_batches(block.uri, shard.slots)["id"] for block in previous)
        joined = (block.combine_chunks() for block in chain(earlier_blocks, blocks))
        ranges = key_ranges(joined, shard.num_passes, settings.seed)
    passes: list[IndexedShard] = []
    row_of: Int32 = np.zeros(0, np.int32)

    def new_ids() -> Iterator[pa.RecordBatch]:
        nonlocal row_of
        for keys in ranges:
            ordered = _order(settings, shard, *read(keys), sum(each.num_new for each in passes))
            passes.append(ordered.counts)
            row_of = ordered.put_rows(row_of)
            for at in range(0, len(ordered.new_ids), ROW_GROUP_ROWS):
                ids = ordered.new_ids.slice(at, ROW_GROUP_ROWS).cast(pa.string())
                yield pa.RecordBatch.from_arrays([ids], schema=_SHARD_SCHEMA)

    spill.write_batches(
        f"{shard_uri(settings, shard)}.arrow", _SHARD_SCHEMA, new_ids(), settings.spill_options
    )
    with spill.new_file(rows_uri(settings, shard), settings.spill_options) as rows:
        rows.write(row_of)
    return _summed(passes)


@dataclass(frozen=True, eq=False)
class _Read:
    """Ids that one pass has read."""

    tables: list[pa.Table]
    inside: list[npt.NDArray[np.bool_]] | None
    """Mask of these ids among all ids of the shard, table by table; None: all."""

    @classmethod
    def of(cls, tables: Iterable[pa.Table], keys: KeyRange, settings: TaskSettings) -> Self:
        if keys.is_all:
            return cls(list(tables), None)
        found, inside = [], []
        for table in tables:
            inside.append(keys.holds(table["id"].combine_chunks(), settings.seed))
            found.append(table.filter(pa.array(inside[-1])))
        return cls(found, inside)

    def column(self, name: str) -> Int32:
        return np.concatenate([np.zeros(0, np.int32), *(each[name].to_numpy() for each in self.tables)])


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Result of one pass over the ids of a shard."""

    counts: IndexedShard
    new_ids: pa.Array
    chunks: _Read
    rows: Int32

    def put_rows(self, row_of: Int32) -> Int32:
        """Put the rows of this pass in their positions among the rows of all ids of the chunks."""
        if self.chunks.inside is None:
            return self.rows
        inside = np.concatenate([np.zeros(0, bool), *self.chunks.inside])
        row_of = row_of if len(row_of) else np.full(len(inside), LEFT_OUT, np.int32)
        row_of[inside] = self.rows
        return row_of


def _order(settings: TaskSettings, shard: Shard, earlier: _Read, chunks: _Read, num_new: int) -> _Ordered:
    """Sort the ids of one pass; earlier passes have `num_new` new ids."""
    found, codes = _distinct([*earlier.tables, *chunks.tables], settings.seed)
    earlier_codes, codes = np.split(codes, [sum(map(len, earlier.tables))])
    kept, degrees = _kept(settings, shard, found, codes, chunks.column("train_count"))
    known = np.full(len(found), LEFT_OUT, np.int32)
    known[earlier_codes] = earlier.column("index")
    is_new = (known < 0) & kept
    row_of = np.where(known < 0, LEFT_OUT, -2 - known)
    row_of[is_new] = np.arange(num_new, num_new + int(is_new.sum()))
    indexed = is_new | (known >= 0)
    counts = IndexedShard(
        int(is_new.sum()),
        int((indexed & (degrees == 0)).sum()),
        int((~kept & (known < 0)).sum()),
        count_degrees(degrees[indexed]),
        _highest(found, np.where(indexed, degrees, 0)),
        _count_by_slot(settings, shard, found),
    )
    return _Ordered(
        counts, found.strings.filter(pa.array(is_new)), chunks, take(row_of.astype(np.int32), codes)
    )


def _count_by_slot(settings: TaskSettings, shard: Shard, found: Distinct) -> Int64:
    partition = settings.partitions()[shard.partition_number]
    num_slots = settings.num_slots[partition.entity_type]
    slots = hashing.scale(found.hashes, settings.num_partitions[partition.entity_type] * num_slots).astype(
        np.int64
    )
    first = partition.number * num_slots + shard.slots.start
    return np.bincount(slots - first, minlength=len(shard.slots))


def _summed(passes: list[IndexedShard]) -> IndexedShard:
    if len(passes) == 1:
        return passes[0]
    return IndexedShard(
        sum(each.num_new for each in passes),
        sum(each.num_outside_train for each in passes),
        sum(each.num_left_out for each in passes),
        merge_counts(each.degrees for each in passes),
        top_degrees(pair for each in passes for pair in each.highest),
        np.sum([each.num_by_slot for each in passes], axis=0),
    )


def _highest(found: Distinct, degrees: Int64) -> list[tuple[int, str]]:
    few = np.argpartition(-degrees, NUM_HIGHEST)[:NUM_HIGHEST] if len(degrees) > NUM_HIGHEST else slice(None)
    rows = np.arange(len(degrees))[few]
    ids = found.strings.take(pa.array(rows)).to_pylist()
    pairs = zip(degrees[rows].tolist(), ids, strict=True)
    return top_degrees(pair for pair in pairs if pair[0] and len(pair[1]) <= MAX_SHOWN_CHARS)


def top_degrees(pairs: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the few ids with most edges; of equal ones the first by raw id."""
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:NUM_HIGHEST]


def _kept(
    settings: TaskSettings, shard: Shard, found: Distinct, codes: Int32, counts: Int32
) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Return a mask of frequent and listed ids, and the train edges of each id."""
    listed = np.zeros(len(found), bool)
    listed[codes[counts == LISTED]] = True
    weights = np.maximum(counts, 0)
    degrees = np.bincount(codes, weights, minlength=len(found)).astype(np.int64)
    entity_type = settings.partitions()[shard.partition_number].entity_type
    return listed | (degrees >= settings.min_entity_counts[entity_type]), degrees


def _distinct(tables: list[pa.Table], seed: int) -> tuple[Distinct, Int32]:
    chunks = [chunk for table in tables for chunk in table["id"].chunks]
    return distinct(pa.chunked_array(chunks, pa.string()), seed)
