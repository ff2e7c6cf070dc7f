"""Step 3: encoded edges -> edges sorted by bucket, chunk by chunk.

Replaces the chunk's numbers by indices, leaves out edges of rare ids and relations, and sorts the rest by
bucket: integers only. The sort is stable, and buckets are filled in the order of the chunks, so edges keep
the order of the raw rows.

    {chunk}.edges.i32             starts int64 [splits x buckets + 1], then the edges as records int32 [N, W]
                                  of `TaskSettings.record_fields`; lhs or rhs is -1 if it has features
    {chunk}.{side}_edges.i32      the same for the features: records int32 [M, 1]
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.steps import spill
from etl.steps.encode import Chunk, read_features
from etl.steps.index import MAX_COUNTED_RELATIONS, relation_rows_uri
from etl.steps.index_shard import Shard, rows_uri
from etl.steps.task_settings import TaskSettings
from etl.strings.hashing import mix, scale
from etl.strings.native import NOWHERE, count, group, take
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import Side

_SPREAD_SALTS = {Side.LHS: np.uint64(0x9E3779B97F4A7C15), Side.RHS: np.uint64(0xC2B2AE3D27D4EB4F)}


@dataclass(frozen=True, eq=False)
class Numbering:
    """Indices of a chunk's ids and relations."""

    shards: list[Shard]
    first_indices: list[int]
    """Index of the first new id of each shard."""
    ranges: Int64
    """[shards, 2] offset and count of the chunk's ids in each shard's rows file."""
    first_relation: int
    """Offset of the chunk's relation names in the file of their numbers."""
    num_relations: int
    rare_relations: list[int]
    """Static relations to leave out."""


@dataclass(frozen=True, eq=False)
class Translated:
    """Counts of a translated chunk."""

    num_edges: Int32
    """[splits x buckets]."""
    num_features: dict[Side, Int64]
    """[splits x buckets] features per featurized side."""
    relation_counts: Int64
    """[relations] edges per relation; empty if there are too many relations."""
    num_rare_relation: int
    num_rare_entity: int


def translate(settings: TaskSettings, chunk: Chunk, numbering: Numbering) -> Translated:
    """Sort one chunk's edges by bucket."""
    codes = spill.read_batches(f"{chunk.uri}.codes.arrow")
    column = {name: codes[name].to_numpy() for name in codes.column_names}
    index_of = _index_of(settings, numbering)
    rel_N = column["rel"]
    if settings.dynamic:
        uri = relation_rows_uri(settings)
        rel_N = spill.read_values(uri, numbering.first_relation, chunk.num_relations)[rel_N]
    elif numbering.rare_relations:
        rel_N = np.where(np.isin(rel_N, numbering.rare_relations), np.int32(-1), rel_N)
    index_N = {side: take(index_of, column[side]) for side in Side}
    known_N = rel_N >= 0
    kept_N = known_N.copy()
    if settings.filters:
        for side in Side:
            kept_N &= (index_N[side] >= 0) | (column[side] < 0)
    bucket_N = _bucket_of(settings, chunk, column)
    bucket_N[~kept_N] = NOWHERE
    fields = {**column, "rel": rel_N, **index_N}
    if settings.weighted:
        fields["weight"] = column["weight"].view(np.int32)
    none_N = np.zeros(len(rel_N), np.int32)
    columns = [fields.get(name, none_N) for name in settings.record_fields]
    starts, records = group(columns, bucket_N, settings.num_split_buckets)
    num_features = {}
    for side in settings.feature_sides:
        counts_N = column.get(f"{side}_features", none_N)
        num_features[side] = _translate_features(settings, chunk, side, index_of, counts_N, bucket_N)
    spill.write_sorted_edges(f"{chunk.uri}.edges.i32", starts, records, settings.etl)
    few = numbering.num_relations <= MAX_COUNTED_RELATIONS
    return Translated(
        np.diff(starts).astype(np.int32),
        num_features,
        count(records[:, 0].copy(), numbering.num_relations) if few else np.zeros(0, np.int64),
        int((~known_N).sum()),
        int((known_N & ~kept_N).sum()),
    )


def _translate_features(
    settings: TaskSettings, chunk: Chunk, side: Side, index_of: Int32, counts_N: Int32, bucket_N: Int32
) -> Int64:
    """Write the features of one side in the order of the edges; return the number per bucket."""
    features = np.zeros(0, np.int32)
    if counts_N.any():
        features = index_of[read_features(chunk.uri, side, int(counts_N.sum(dtype=np.int64)))]
    starts, records = group([features], np.repeat(bucket_N, counts_N), settings.num_split_buckets)
    spill.write_sorted_edges(features_uri(chunk.uri, side), starts, records, settings.etl)
    return np.diff(starts)


def features_uri(uri: str, side: Side) -> str:
    """URI of the sorted features of one side of a chunk's edges."""
    return f"{uri}.{side}_edges.i32"


def _index_of(settings: TaskSettings, numbering: Numbering) -> Int32:
    """Return the index, in its partition, of each of the chunk's ids; -1: left out.

    The last entry, -1, is for the code -1 of a list of features.
    """
    tables = []
    for shard, first, (offset, num_ids) in zip(
        numbering.shards, numbering.first_indices, numbering.ranges.tolist(), strict=True
    ):
        if num_ids:
            rows = spill.read_values(rows_uri(settings, shard), offset, num_ids)
            tables.append(np.where(rows >= 0, rows + np.int32(first), np.int32(-2) - rows))
    return np.concatenate([*tables, np.full(1, -1, np.int32)])


def _bucket_of(settings: TaskSettings, chunk: Chunk, column: dict[str, Any]) -> Int32:
    """Number each edge's bucket among the buckets of all splits."""
    bucket_N: Int32 = column["split"].astype(np.int32)
    for side, num_slices in zip(Side, settings.grid, strict=True):
        bucket_N *= np.int32(num_slices)
        if num_slices > 1:
            slice_N = take(_slice_of(settings, chunk, num_slices), column[side])
            if settings.spreads:
                # The edge's hash draws the slice of an entity whose type has one partition.
                drawn_N = scale(mix(column["edge_hash"] ^ _SPREAD_SALTS[side]), num_slices)
                slice_N = np.where(slice_N < 0, drawn_N.astype(np.int64), slice_N)
            bucket_N += slice_N.astype(np.int32, copy=False)
    return bucket_N


def _slice_of(settings: TaskSettings, chunk: Chunk, num_slices: int) -> Int32:
    """Return the slice of one side of the grid of each of the chunk's ids; -1: spread over all slices.

    The last entry is for lists of features, whose types have one partition.
    """
    slices = [
        partition.number if settings.num_partitions[partition.entity_type] == num_slices else -1
        for partition in settings.partitions
    ]
    num_ids = [int(of_slots.sum()) for of_slots in settings.by_partition(chunk.num_ids)]
    return np.append(np.repeat(np.array(slices, np.int32), num_ids), np.int32(-1))
