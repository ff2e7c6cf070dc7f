"""Step 3: encoded edges -> edges sorted by bucket, chunk by chunk.

Replaces the chunk's numbers by indices, leaves out edges of rare ids and relations, and sorts the rest by
bucket: integers only. The sort is stable, and buckets are filled in the order of the chunks, so edges keep
the order of the raw rows.

    {chunk}.edges.i32             a section per bucket of each split: heads, which say the raw file of the
                                  edges (`bucket_rows`); then the edges as records int32 [N, W] of
                                  `TaskSettings.record_fields`; lhs or rhs is -1 if it has features
    {chunk}.{side}_edges.i32      the same for the features: int32 [M]
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps import exchange, spill
from etl.steps.bucket_rows import heads_of
from etl.steps.chunks import EdgeChunk
from etl.steps.exchange import Exchange
from etl.steps.index import MAX_COUNTED_RELATIONS, IndexedRelations
from etl.steps.spill import Shared
from etl.steps.task_settings import TaskSettings
from etl.strings.native import NOWHERE, count, group, take
from graphmill import storage
from graphmill.formats.murmur import mix, scale
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import Side

_SPREAD_SALTS = {Side.LHS: np.uint64(0x9E3779B97F4A7C15), Side.RHS: np.uint64(0xC2B2AE3D27D4EB4F)}


@dataclass(frozen=True, eq=False)
class TranslatePlan:
    """Values that all tasks of the step share."""

    settings: TaskSettings
    rows: Exchange
    """From shards to chunks; last, if they are dynamic, the numbers of the chunks' relation names."""
    partition_numbers: Int64
    """[shards] the partition of each shard."""
    first_indices: Int64
    """[shards] index of the first new id of each shard."""
    relations: IndexedRelations


@dataclass(frozen=True, eq=False)
class Translated:
    """Counts of translated chunks, added up."""

    num_edges: Int64
    """[splits x buckets]."""
    num_heads: Int64
    """[splits x buckets] records that say the files of the edges."""
    num_features: dict[Side, Int64]
    """[splits x buckets] features per featurized side."""
    relation_counts: Int64
    """[relations] edges per relation; empty if there are too many relations."""
    num_rare_relation: int
    num_rare_entity: int

    def __add__(self, other: "Translated") -> "Translated":
        return Translated(
            self.num_edges + other.num_edges,
            self.num_heads + other.num_heads,
            {side: counts + other.num_features[side] for side, counts in self.num_features.items()},
            self.relation_counts + other.relation_counts,
            self.num_rare_relation + other.num_rare_relation,
            self.num_rare_entity + other.num_rare_entity,
        )


def nothing(settings: TaskSettings, num_relations: int) -> Translated:
    """Return the counts of no chunk."""
    none = np.zeros(settings.num_split_buckets, np.int64)
    num_counted = num_relations if num_relations <= MAX_COUNTED_RELATIONS else 0
    of_sides = dict.fromkeys(settings.feature_sides, none)
    return Translated(none, none, of_sides, np.zeros(num_counted, np.int64), 0, 0)


def translate(shared: Shared[TranslatePlan], number: int, chunk: EdgeChunk) -> Translated:
    """Sort the edges of a chunk by bucket."""
    plan = shared.read()
    settings, uri = plan.settings, storage.join(plan.settings.folders.work, chunk.name)
    (codes,) = spill.read_batches(f"{uri}.codes.arrow").to_batches()
    lists = {name: codes[name] for name in codes.schema.names if pa.types.is_list(codes[name].type)}
    column = {name: codes[name].to_numpy() for name in codes.schema.names if name not in lists}
    column |= {name: pc.list_value_length(of_side).to_numpy() for name, of_side in lists.items()}
    index_of, partition_of, relation_of = _numbers(plan, number)
    rel_N = take(relation_of, column["rel"])
    index_N = {side: take(index_of, column[side]) for side in Side}
    known_N = rel_N >= 0
    kept_N = known_N.copy()
    if settings.filters or chunk.removes:  # rows that take out edges may have ids that no edge has
        for side in Side:
            kept_N &= (index_N[side] >= 0) | (column[side] < 0)
    bucket_N = _bucket_of(settings, partition_of, column)
    bucket_N[~kept_N] = NOWHERE
    fields = {**column, "rel": rel_N, **index_N}
    if settings.weighted:
        fields["weight"] = column["weight"].view(np.int32)
    none_N = np.zeros(len(rel_N), np.int32)
    columns = [fields.get(name, none_N) for name in settings.record_fields]
    heads = heads_of(chunk.files, bucket_N, settings.num_split_buckets, len(columns))
    starts, records = group(columns, bucket_N, settings.num_split_buckets, heads)
    num_heads = count(heads[:, 0].copy(), settings.num_split_buckets)
    num_features = {}
    for side in settings.feature_sides:  # in the order of the edges
        of_side, counts_N = lists.get(name := f"{side}_features"), column.get(name, none_N)
        features = none_N[:0] if of_side is None else index_of[of_side.flatten().to_numpy()]
        of_edges, features = group([features], np.repeat(bucket_N, counts_N), settings.num_split_buckets)
        spill.write_records(f"{uri}{features_suffix(side)}", of_edges, features, settings.etl)
        num_features[side] = np.diff(of_edges)
    spill.write_records(f"{uri}.edges.i32", starts, records, settings.etl)
    num_relations = plan.relations.num_relations
    if chunk.removes:
        return replace(
            nothing(settings, num_relations), num_edges=np.diff(starts) - num_heads, num_heads=num_heads
        )
    few = num_relations <= MAX_COUNTED_RELATIONS
    return Translated(
        np.diff(starts) - num_heads,
        num_heads,
        num_features,
        count(np.where(kept_N, rel_N, np.int32(NOWHERE)), num_relations) if few else np.zeros(0, np.int64),
        int((~known_N).sum()),
        int((known_N & ~kept_N).sum()),
    )


def features_suffix(side: Side) -> str:
    """End of the name of the sorted features of one side of a chunk's edges."""
    return f".{side}_edges.i32"


def _numbers(plan: TranslatePlan, number: int) -> tuple[Int32, Int32, Int32]:
    """Return the index, in its partition, of each of a chunk's ids, -1: left out; the partition of each.

    The last entries, -1, are for the code -1 of a list of features. Then the number of each relation.
    """
    rows = [np.frombuffer(content, np.int32) for _, content in exchange.pieces(plan.rows, number)]
    relation_of = rows.pop() if plan.settings.dynamic else plan.relations.numbers
    none = np.full(1, -1, np.int32)
    indices = [
        np.where(of_shard >= 0, of_shard + np.int32(first), np.int32(-2) - of_shard)
        for of_shard, first in zip(rows, plan.first_indices, strict=True)
    ]
    partitions = np.repeat(plan.partition_numbers.astype(np.int32), [*map(len, rows)])
    return np.concatenate([*indices, none]), np.append(partitions, none), relation_of


def _bucket_of(settings: TaskSettings, partition_of: Int32, column: dict[str, Any]) -> Int32:
    """Number each edge's bucket among the buckets of all splits."""
    bucket_N: Int32 = column["split"].astype(np.int32)
    for side, num_slices in zip(Side, settings.grid, strict=True):
        bucket_N *= np.int32(num_slices)
        if num_slices > 1:
            slice_N = take(_slice_of(settings, partition_of, num_slices), column[side])
            if settings.spreads:
                # The edge's hash draws the slice of an entity whose type has one partition.
                drawn_N = scale(mix(column["edge_hash"] ^ _SPREAD_SALTS[side]), num_slices)
                slice_N = np.where(slice_N < 0, drawn_N.astype(np.int64), slice_N)
            bucket_N += slice_N.astype(np.int32, copy=False)
    return bucket_N


def _slice_of(settings: TaskSettings, partition_of: Int32, num_slices: int) -> Int32:
    """Return the slice of one side of the grid of each of the chunk's ids; -1: spread over all slices.

    The last entry is for lists of features, whose types have one partition.
    """
    slices = [
        partition.number if settings.num_partitions[partition.entity_type] == num_slices else -1
        for partition in settings.partitions
    ]
    return take(np.array([*slices, -1], np.int32), partition_of)
