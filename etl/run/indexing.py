"""Step 2 of the stage: runs the tasks of etl/steps/index.py and etl/steps/index_shard.py."""

from typing import Any

from etl.run.work import EtlWork
from etl.steps import exchange, index
from etl.steps.bucket_rows import EarlierIds
from etl.steps.chunks import EdgeChunk, IdCounts
from etl.steps.index_previous import file_previous, previous_counts
from etl.steps.index_shard import IndexedShard, IndexPlan, Shard, index_shard
from etl.steps.task_settings import TaskSettings
from graphmill.storage import Checksums


def index_ids(
    work: EtlWork,
    settings: TaskSettings,
    chunks: list[EdgeChunk],
    counts: IdCounts,
    earlier: EarlierIds | None,
) -> index.IndexedEntities:
    """Index the ids of all chunks, after those of an earlier index."""
    num_earlier = previous_counts(settings)
    known = [number for number, count in enumerate(num_earlier) if count]
    tasks: list[tuple[Any, ...]] = [(settings, settings.partitions[number]) for number in known]
    filed = work.run_tasks(file_previous, tasks, "read the earlier index")
    previous = dict(zip(known, filed, strict=True))
    num_previous = [
        sum(int(block.num_ids.sum()) for block in previous.get(n, ())) for n in range(len(num_earlier))
    ]
    num_ids, id_bytes = counts.num_ids.copy(), counts.id_bytes.copy()
    for number, blocks in previous.items():
        for block in blocks:
            settings.by_partition(num_ids)[number][:] += block.num_ids
            settings.by_partition(id_bytes)[number][:] += block.id_bytes
    shards = index.plan_shards(settings, num_ids, id_bytes)
    bounds = index.shard_bounds(settings, shards)
    ids = exchange.planned(settings, "ids", [f"{chunk.name}.ids" for chunk in chunks], bounds)
    uris = {number: [block.uri for block in blocks] for number, blocks in previous.items()}
    shared = work.share("index", IndexPlan(settings, shards, ids, uris), len(shards))
    tasks = [(shared, number) for number in range(len(shards))]
    with work.combined([ids], settings.etl):
        indexed = work.run_tasks(index_shard, tasks, "index entities", "shards")
    num_entities = index.count_entities(shards, indexed, num_previous)
    written, num_gone = _write_index(work, settings, shards, indexed, num_entities, earlier)
    relations = index.static_relations(settings, counts.relation_counts)
    if settings.dynamic:
        tasks = [(settings, [chunk.name for chunk in chunks if chunk.num_edges])]
        (relations,) = work.run_tasks(index.index_relations, tasks, "number relations")
    checksums = {uri: checksum for part in (*written, relations.checksums) for uri, checksum in part.items()}
    num_forgotten = [before - now for before, now in zip(num_earlier, num_previous, strict=True)]
    return index.IndexedEntities(
        shards, indexed, num_previous, num_entities, relations, checksums, num_gone, num_forgotten
    )


def _write_index(
    work: EtlWork,
    settings: TaskSettings,
    shards: list[Shard],
    indexed: list[IndexedShard],
    num_entities: list[int],
    earlier: EarlierIds | None,
) -> tuple[list[Checksums], list[int]]:
    """Write the index of all partitions; return checksums, and the number of gone ids, if it is counted."""
    own: list[list[int]] = [[] for _ in num_entities]
    for place, shard in enumerate(shards):
        own[shard.partition_number].append(place)
    tasks: list[tuple[Any, ...]] = []
    for number, first_id in enumerate(index.first_ids(settings, num_entities)):
        partition, of_partition = settings.partitions[number], [shards[place] for place in own[number]]
        if settings.today is None:
            tasks.append((settings, partition, of_partition, first_id))
        else:
            num_named = [indexed[place].num_named for place in own[number]]
            tasks.append((settings, partition, of_partition, num_named, first_id, earlier))
    what = "write the entity index"
    if settings.today is None:
        return work.run_tasks(index.write_partition, tasks, what, "partitions"), []
    written = work.run_tasks(index.write_partition_with_history, tasks, what, "partitions")
    return [checksums for checksums, _ in written], [num_gone for _, num_gone in written]
