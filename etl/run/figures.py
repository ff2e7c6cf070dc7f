"""Figures for run.json, and warnings about uneven buckets and crowded partitions."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from etl.run.sources import SourcePlan
from etl.steps.chunks import Encoded
from etl.steps.degrees import histogram, sum_degrees, summarize
from etl.steps.index import IndexedEntities
from etl.steps.index_shard import IndexedShard, sum_counts
from etl.steps.merge import Merged
from etl.steps.task_settings import TaskSettings
from etl.steps.translate import Translated
from graphmill import storage
from graphmill.errors import RawTableError
from graphmill.formats.edge_buckets.origins import ORIGINS, SourceFile
from graphmill.formats.murmur import HASH_NAME
from graphmill.storage.as_json import Int64

log = logging.getLogger("graphmill")

UNEVEN_RATIO = 3
UNEVEN_EDGES = 10_000
CROWDED_RATIO = 2
CROWDED_IDS = 1000  # with these two limits, ordinary ids are 10 standard deviations away
MAX_SHOWN_CELLS = 64
SHOWN_RELATIONS = 5  # in messages
MAX_RELATIONS = 100  # in run.json

Count = TypeVar("Count")


def check_bad_rows(plan: SourcePlan, files: Sequence[SourceFile], limit: float, uri: str) -> None:
    """Warn of bad rows, and refuse tables with too many of them; those that are read are at the URI."""
    num_rows = sum(file.num_rows for file in files)
    by_reason = _by_reason(files)
    num_bad = sum(by_reason.values())
    if not num_bad:
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in by_reason.items())
    if unknown := unknown_relations(files):
        names = ", ".join(f"{name!r} {count}" for name, count in list(unknown.items())[:SHOWN_RELATIONS])
        more = f" and {len(unknown) - SHOWN_RELATIONS} more" if len(unknown) > SHOWN_RELATIONS else ""
        reasons += f"; most frequent unknown relations: {names}{more}"
    problem = f"{num_bad} of {num_rows} rows cannot become edges ({reasons})"
    if num_kept := sum(sum(files[number].num_bad.values()) for number in plan.kept):
        uri += f", but for {num_kept} in files that the earlier run has read"
    if num_bad > limit * num_rows:
        raise RawTableError(f"{problem}, more than etl.max_bad_fraction {limit:g} allows; they are in {uri}")
    log.warning("etl: %s; they go to %s", problem, uri)


def unknown_relations(files: Sequence[SourceFile]) -> dict[str, int]:
    """Count bad rows by unknown relation, the most frequent first."""
    counts = sum((Counter(file.num_unknown) for file in files), Counter[str]())
    return dict(sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:MAX_RELATIONS])


def warn_if_uneven(settings: TaskSettings, num_edges: Int64) -> None:
    """Warn of splits with a bucket much larger than the mean; `num_edges` is [splits x buckets]."""
    for split, counts in zip(settings.splits, num_edges.reshape(len(settings.splits), -1), strict=True):
        largest, mean = int(counts.max()), float(counts.mean())
        if largest > UNEVEN_EDGES and largest > UNEVEN_RATIO * mean:
            _, bucket = settings.bucket_at(int(counts.argmax()))
            log.warning(
                f"etl: buckets of {split} are uneven: {bucket} has {largest} edges, the mean is {mean:.0f}; "
                "a few ids have a large share of all edges, and training waits for their buckets"
            )


def warn_if_crowded(settings: TaskSettings, index: IndexedEntities) -> None:
    """Warn of partitions where a range of hashes has many more ids than by chance."""
    by_partition = settings.by_partition(np.concatenate([shard.num_by_slot for shard in index.indexed]))
    by_type = _by_type(settings, by_partition)
    for (name, number), of_partition in zip(settings.partitions, by_partition, strict=True):
        mean = float(np.mean(by_type[name]))
        crowded = of_partition[of_partition > CROWDED_RATIO * mean + CROWDED_IDS]
        if len(crowded):
            log.warning(
                f"etl: partition {number} of {name} is crowded: {int(crowded.sum())} of its ids have hashes "
                f"({HASH_NAME}) that no more than {mean * len(crowded):.0f} ids should have; such ids are "
                "made on purpose; the partition and its buckets are larger than others, and take longer: "
                "check the source of the ids"
            )


def warn_if_apart(settings: TaskSettings, index: IndexedEntities) -> None:
    """Warn of types whose tables of entities have no id of an edge; all edges are in the chunks."""
    for name, counts in _indexed(settings, index).items():
        if counts.num_listed and not counts.num_met and counts.edge_id:
            log.warning(
                f"etl: entities.{name}: none of {counts.num_listed:,} ids of its tables of entities, such as "
                f"{counts.listed_id!r}, is among the ids of edges, such as {counts.edge_id!r}; ids are "
                "compared as text: are they written in another way, or of another type?"
            )


def figures(
    settings: TaskSettings,
    plan: SourcePlan,
    files: Sequence[SourceFile],
    encoded: list[Encoded],
    index: IndexedEntities,
    translated: Translated,
    merged: Merged,
) -> dict[str, Any]:
    """Return all figures of the stage for run.json."""
    num_edges = merged.num_edges
    by_split = dict(zip(settings.splits, num_edges.reshape(len(settings.splits), -1), strict=True))
    by_reason = _by_reason(files)
    folders = [settings.folders.entities, *settings.folders.splits.values()]
    written = [entry for folder in folders for entry in storage.list_dir(folder, recursive=True)]
    left_out = {
        "self_loops": sum(file.num_self_loops for file in files),
        "min_relation_count": translated.num_rare_relation,
        "min_entity_count": translated.num_rare_entity,
        "duplicates": int(merged.num_rows.sum() - num_edges.sum()),
    }
    if settings.removes:  # with both settings, which of them left out an edge is not counted
        drops = settings.etl.duplicates == "drop"
        left_out["removed_or_duplicates" if drops else "removed"] = left_out.pop("duplicates")
    result: dict[str, Any] = {
        "num_rows": sum(file.num_rows for file in files),
        "num_rows_quarantined": sum(by_reason.values()),
        "quarantined": by_reason,
        "unknown_relations": unknown_relations(files),
        "num_edges_left_out": left_out,
        "num_edges": {split: int(of_split.sum()) for split, of_split in by_split.items()},
        "num_relations": index.relations.num_relations,
        "num_relations_left_out": index.relations.num_left_out,
        **_entities(settings, index, merged),
        "buckets": {split: _summary(of_split) for split, of_split in by_split.items()},
        "edges_by_bucket": {
            split: _shown_grid(of_split.reshape(settings.grid)) for split, of_split in by_split.items()
        },
        "integer_id_columns": sorted(
            {
                f"{label}.{c}"
                for label, file in zip(plan.labels, files, strict=True)
                for c in file.integer_columns
            }
        ),
        **_delta(plan, files),
        "num_chunks": sum(len(group.chunks) for group in encoded),
        "bytes_in": sum(file_range.num_bytes for file_range in plan.ranges),
        # Names of raw files may be long; the rest does not depend on where they are.
        "bytes_out": sum(entry.size_bytes for entry in written if storage.name(entry.uri) != ORIGINS),
    }
    if index.relations.names is not None:
        # Counted before duplicates are dropped.
        counts = translated.relation_counts if merged.degrees is None else merged.relation_counts
        edges = counts.tolist()
        result["num_edges_by_relation"] = dict(zip(index.relations.names, edges, strict=True))
    return result


def _delta(plan: SourcePlan, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Say what the run reused of the earlier run, or why it reused nothing."""
    if plan.added is None:
        return {"delta": None, "delta_reason": plan.reason or None}
    added = [files[number] for number in plan.added]
    kept = [files[number] for number in sorted(plan.kept)]
    counts: dict[str, int] = {}
    for what, of_files in (("kept", kept), ("added", added), ("gone", plan.gone)):
        counts |= {f"files_{what}": len(of_files), f"edges_{what}": sum(file.num_edges for file in of_files)}
    return {"delta": counts, "delta_reason": None}


def _entities(settings: TaskSettings, index: IndexedEntities, merged: Merged) -> dict[str, Any]:
    counts = _indexed(settings, index)
    if merged.degrees is None:
        of_types = {name: count.degrees for name, count in counts.items()}
    else:
        of_types = {n: sum_degrees(parts) for n, parts in _by_type(settings, merged.degrees).items()}
    by_partition = {"num_entities_from_previous": index.num_previous}
    if settings.today is not None:  # ids that no row names any more, and those that the run forgot for it
        by_partition |= {"num_entities_gone": index.num_gone, "num_entities_forgotten": index.num_forgotten}
    return {
        "num_entities": _by_type(settings, index.num_entities),
        # No edge trains their embeddings.
        "num_entities_outside_train": {name: of_type.num_outside_train for name, of_type in of_types.items()},
        "num_entities_left_out": {name: count.num_left_out for name, count in counts.items()},
        **{
            key: {name: sum(of_partitions) for name, of_partitions in _by_type(settings, counts).items()}
            for key, counts in by_partition.items()
        },
        "train_degree": {name: summarize(of_type) for name, of_type in of_types.items()},
        "degree_histogram": {name: histogram(of_type) for name, of_type in of_types.items()},
        "highest_degrees": {name: list(map(list, of_type.highest)) for name, of_type in of_types.items()},
    }


def _indexed(settings: TaskSettings, index: IndexedEntities) -> dict[str, IndexedShard]:
    """Add up the counts of the shards of each type."""
    indexed: dict[str, list[IndexedShard]] = {name: [] for name in settings.entity_types}
    partitions = settings.partitions
    for shard, of_shard in zip(index.shards, index.indexed, strict=True):
        indexed[partitions[shard.partition_number].entity_type].append(of_shard)
    return {name: sum_counts(parts, np.zeros(0, np.int64)) for name, parts in indexed.items()}


def _by_type(settings: TaskSettings, by_partition: Sequence[Count]) -> dict[str, list[Count]]:
    by_type: dict[str, list[Count]] = {name: [] for name in settings.entity_types}
    for (name, _), of_partition in zip(settings.partitions, by_partition, strict=True):
        by_type[name].append(of_partition)
    return by_type


def _by_reason(files: Sequence[SourceFile]) -> dict[str, int]:
    return dict(sorted(sum((Counter(file.num_bad) for file in files), Counter[str]()).items()))


def _summary(num_edges: Int64) -> dict[str, Any]:
    return {
        "num_buckets": len(num_edges),
        "num_empty": int((num_edges == 0).sum()),
        "min_edges": int(num_edges.min()),
        "mean_edges": float(num_edges.mean()),
        "max_edges": int(num_edges.max()),
    }


def _shown_grid(num_edges: Int64) -> dict[str, Any]:
    """Count edges by lhs and rhs partition, [lhs][rhs]; a cell of a large grid is several partitions."""
    size = -(-max(num_edges.shape) // MAX_SHOWN_CELLS)
    starts = [np.arange(0, length, size) for length in num_edges.shape]
    summed = np.add.reduceat(np.add.reduceat(num_edges, starts[0], axis=0), starts[1], axis=1)
    return {"partitions_a_cell": size, "counts": summed.tolist()}
