"""One task of step 2: the ids of a shard -> their order, and the rows of each chunk's ids.

A shard is a range of adjacent slots of a partition whose ids fit the memory of a task. If the ids of a single
slot do not fit, for example because they share a hash, they are sorted in several passes. A pass is a range
of the sort key (hash, raw id), and reads the shard's ids once more. Files, in the work folder:

    {type}-{partition}-{shard}.arrow      id: string; the shard's new ids, in the order of their indices
    {type}-{partition}-{shard}.rows.i32   a section per chunk; per id: r >= 0, the r-th new id of the shard;
                                          -1, left out; else -2 - index of an id of the earlier index
    {type}-{partition}-{shard}.named.arrow    index: int32; of a run that forgets ids: those of the earlier
                                          index's ids that the chunks name
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps import exchange, spill
from etl.steps.degrees import Degrees, count_degrees, highest_degrees, sum_degrees
from etl.steps.encode import IDS_SCHEMA, LISTED
from etl.steps.exchange import Exchange
from etl.steps.index_previous import SCHEMA as PREVIOUS_SCHEMA
from etl.steps.spill import Shared
from etl.steps.task_settings import TaskSettings
from etl.strings import native
from etl.strings.native import take
from etl.strings.table import distinct
from graphmill import storage
from graphmill.storage.as_json import Int32, Int64, Range

ROW_GROUP_ROWS = 1 << 20
LEFT_OUT = -1
_SHARD_SCHEMA = pa.schema([("id", pa.string())])
MIN_PASS_BYTES = 1 << 20
_SAMPLED = 1000  # one id in 1000 is sampled to choose the ranges


class Key(NamedTuple):
    """Sort key of an id."""

    hash: int
    raw_id: str


class KeyRange(NamedTuple):
    """Range of keys of one pass: [first, stop); by default it holds every id."""

    first: Key | None = None
    stop: Key | None = None

    def holds(self, ids: pa.Array, seed: int) -> npt.NDArray[np.bool_]:
        """Return a mask [N] of the ids in the range."""
        hashes = native.hash_strings(ids, seed)
        inside = np.ones(len(ids), bool)
        for key, is_first in ((self.first, True), (self.stop, False)):
            if key is not None:
                same = hashes == np.uint64(key.hash)
                after = same & pc.greater_equal(ids, key.raw_id).to_numpy(zero_copy_only=False)
                after |= hashes > np.uint64(key.hash)
                inside &= after if is_first else ~after
        return inside


def num_passes(cost_bytes: int, budget_bytes: int) -> int:
    """Number of passes over ids that would take `cost_bytes` in one pass."""
    return -(-cost_bytes // max(budget_bytes, MIN_PASS_BYTES))


def key_ranges(blocks: Iterable[pa.Array], count: int, seed: int) -> list[KeyRange]:
    """Cut all ids, given in blocks, into at most `count` ranges with about equal numbers of ids."""
    if count <= 1:
        return [KeyRange()]
    samples = [block.take(pa.array(np.arange(0, len(block), _SAMPLED))) for block in blocks]
    sample, _ = distinct(pa.chunked_array(samples, pa.string()), seed)
    rows = np.unique(len(sample) * np.arange(1, count) // count)[: len(sample)].tolist()
    keys = [Key(int(sample.hashes[row]), sample.strings[row].as_py()) for row in rows]
    return [KeyRange(*ends) for ends in pairwise([None, *keys, None])]


@dataclass(frozen=True)
class Shard:
    """Adjacent slots of a partition, whose ids one task sorts."""

    partition_number: int
    number: int
    slots: Range
    """Numbers among the partition's slots."""
    num_passes: int
    """More than 1 if the ids of a single slot do not fit the memory."""


@dataclass(frozen=True)
class IndexedShard:
    """Counts of one shard."""

    num_new: int
    num_left_out: int
    degrees: Degrees
    num_by_slot: Int64
    """[slots of the shard] distinct ids."""
    num_listed: int
    """Ids of tables of entities."""
    num_met: int
    """Those of them that edges have."""
    listed_id: str = ""
    """One of them; empty: there is none."""
    edge_id: str = ""
    """An id that edges have; empty: there is none."""


@dataclass(frozen=True, eq=False)
class IndexPlan:
    """Values that all tasks of the step share."""

    settings: TaskSettings
    shards: list[Shard]
    ids: Exchange
    """From chunks to shards."""
    previous: dict[int, list[str]]
    """URIs of the blocks of the earlier index, by partition."""


def rows_name(settings: TaskSettings, shard: Shard) -> str:
    """Name of the file of the rows of each chunk's ids in the shard."""
    return f"{_shard_name(settings, shard)}.rows.i32"


def new_ids_uri(settings: TaskSettings, shard: Shard) -> str:
    """URI of the file of the shard's new ids."""
    return storage.join(settings.folders.work, f"{_shard_name(settings, shard)}.arrow")


def read_named(settings: TaskSettings, shard: Shard) -> Int32:
    """Read the indices of the earlier index's ids that the chunks name."""
    indices: Int32 = spill.read_batches(_named_uri(settings, shard))["index"].to_numpy()
    return indices


def _named_uri(settings: TaskSettings, shard: Shard) -> str:
    return storage.join(settings.folders.work, f"{_shard_name(settings, shard)}.named.arrow")


def _shard_name(settings: TaskSettings, shard: Shard) -> str:
    entity_type, number = settings.partitions[shard.partition_number]
    return f"{entity_type}-{number}-{shard.number}"


def index_shard(shared: Shared[IndexPlan], shard_number: int) -> IndexedShard:
    """Sort the ids of one shard, and write its two files."""
    plan = shared.read()
    settings, shard = plan.settings, plan.shards[shard_number]
    num_by_chunk: list[int] = []

    def earlier() -> Iterator[pa.Table]:
        num_slots = settings.num_slots[settings.partitions[shard.partition_number].entity_type]
        for uri in plan.previous.get(shard.partition_number, []):
            yield spill.read_slots(uri, PREVIOUS_SCHEMA, shard.slots, num_slots)

    def chunks() -> Iterator[pa.Table]:
        num_by_chunk.clear()
        for _, content in exchange.pieces(plan.ids, shard_number):
            table = spill.slot_table(content, IDS_SCHEMA)
            num_by_chunk.append(len(table))
            yield table

    blocks = (table["id"].combine_chunks() for table in chain(earlier(), chunks()))
    ranges = key_ranges(blocks, shard.num_passes, settings.seed)
    passes: list[IndexedShard] = []
    named: list[Int32] = []
    row_of: Int32 = np.zeros(0, np.int32)

    def new_ids() -> Iterator[pa.RecordBatch]:
        nonlocal row_of
        for keys in ranges:
            old, _ = _within(keys, earlier(), PREVIOUS_SCHEMA, settings.seed)
            ids, inside = _within(keys, chunks(), IDS_SCHEMA, settings.seed)
            num_new = sum(done.num_new for done in passes)
            counts, new, rows, named_old = _order(settings, shard, old, ids, num_new)
            named.append(named_old)
            if inside is None:
                row_of = rows
            else:
                row_of = row_of if len(row_of) else np.full(len(inside), LEFT_OUT, np.int32)
                row_of[inside] = rows
            passes.append(counts)
            for at in range(0, len(new), ROW_GROUP_ROWS):
                strings = new.slice(at, ROW_GROUP_ROWS).cast(pa.string())
                yield pa.record_batch([strings], schema=_SHARD_SCHEMA)

    spill.write_batches(new_ids_uri(settings, shard), _SHARD_SCHEMA, new_ids(), settings.etl)
    if settings.today is not None:
        batch = pa.record_batch({"index": np.concatenate(named)})
        spill.write_batches(_named_uri(settings, shard), batch.schema, [batch], settings.etl)
    starts = np.cumsum([0, *num_by_chunk], dtype=np.int64)
    rows_uri = storage.join(settings.folders.work, rows_name(settings, shard))
    spill.write_records(rows_uri, starts, row_of, settings.etl)
    return sum_counts(passes, np.sum([done.num_by_slot for done in passes], axis=0))


def _within(
    keys: KeyRange, tables: Iterable[pa.Table], schema: pa.Schema, seed: int
) -> tuple[pa.Table, npt.NDArray[np.bool_] | None]:
    """Join the ids within a range of keys; return also a mask of these ids among all ids, None for all."""
    if keys == KeyRange():
        return pa.concat_tables([schema.empty_table(), *tables]), None
    within, inside = [schema.empty_table()], [np.zeros(0, bool)]
    for table in tables:
        inside.append(keys.holds(table["id"].combine_chunks(), seed))
        within.append(table.filter(pa.array(inside[-1])))
    return pa.concat_tables(within), np.concatenate(inside)


def _order(
    settings: TaskSettings, shard: Shard, old: pa.Table, ids: pa.Table, num_new: int
) -> tuple[IndexedShard, pa.Array, Int32, Int32]:
    """Sort the ids of one pass; earlier passes have `num_new` new ids.

    Returns:
        the counts of the pass, its new ids, the row of each of `ids`, and the indices of named old ids.
    """
    entity_type, number = settings.partitions[shard.partition_number]
    known_ids, codes = distinct(
        pa.chunked_array(old["id"].chunks + ids["id"].chunks, pa.string()), settings.seed
    )
    old_codes, codes = np.split(codes, [len(old)])
    train_counts = ids["train_count"].to_numpy()
    degrees = np.bincount(codes, np.maximum(train_counts, 0), minlength=len(known_ids)).astype(np.int64)
    kept = degrees >= settings.etl.min_count(entity_type)
    is_listed, is_met = np.zeros(len(known_ids), bool), np.zeros(len(known_ids), bool)
    is_listed[codes[train_counts == LISTED]] = True
    is_met[codes[train_counts > LISTED]] = True
    is_named = is_listed | is_met  # not only by rows that take out edges
    kept = (kept | is_listed) & is_named
    known = np.full(len(known_ids), LEFT_OUT, np.int32)
    known[old_codes] = old["index"].to_numpy()
    is_new = (known < 0) & kept
    row_of = np.where(known < 0, LEFT_OUT, -2 - known)
    row_of[is_new] = np.arange(num_new, num_new + int(is_new.sum()))
    indexed = is_new | (known >= 0)
    named_old = known[is_named & (known >= 0)]
    slots = settings.slots_of(entity_type, known_ids.hashes)
    slots -= number * settings.num_slots[entity_type] + shard.slots.start
    counts = IndexedShard(
        int(is_new.sum()),
        int((~kept & is_named & (known < 0)).sum()),
        count_degrees(degrees[indexed], highest_degrees(known_ids.strings, np.where(indexed, degrees, 0))),
        np.bincount(slots, minlength=len(shard.slots)),
        int(is_listed.sum()),
        int((is_listed & is_met).sum()),
        *(_first(known_ids.strings, mask) for mask in (is_listed, is_met)),
    )
    return counts, known_ids.strings.filter(pa.array(is_new)), take(row_of.astype(np.int32), codes), named_old


def _first(strings: pa.Array, mask: npt.NDArray[np.bool_]) -> str:
    return str(strings[int(mask.argmax())]) if mask.any() else ""


def sum_counts(parts: Sequence[IndexedShard], num_by_slot: Int64) -> IndexedShard:
    """Add up the counts of the passes of a shard, or of several shards."""
    return IndexedShard(
        sum(part.num_new for part in parts),
        sum(part.num_left_out for part in parts),
        sum_degrees([part.degrees for part in parts]),
        num_by_slot,
        sum(part.num_listed for part in parts),
        sum(part.num_met for part in parts),
        max(part.listed_id for part in parts),
        max(part.edge_id for part in parts),
    )
