"""Step 2 of the stage: runs the tasks of etl/steps/index.py and etl/steps/index_shard.py."""

from collections import Counter
from typing import Any

from etl.run.work import EtlWork
from etl.steps import exchange, index
from etl.steps.bucket_rows import EarlierIds
from etl.steps.chunks import EdgeChunk, IdCounts
from etl.steps.index_previous import file_previous, previous_counts
from etl.steps.index_shard import IndexPlan, index_shard
from etl.steps.task_settings import TaskSettings


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
    ids_of, bytes_of = settings.by_partition(num_ids), settings.by_partition(id_bytes)  # views
    for number, blocks in previous.items():
        for block in blocks:
            ids_of[number] += block.num_ids
            bytes_of[number] += block.id_bytes
    shards = index.plan_shards(settings, num_ids, id_bytes)
    bounds = index.shard_bounds(settings, shards)
    ids = exchange.planned(settings, "ids", [f"{chunk.name}.ids" for chunk in chunks], bounds)
    uris = {number: [block.uri for block in blocks] for number, blocks in previous.items()}
    shared = work.share("index", IndexPlan(settings, shards, ids, uris), len(shards))
    tasks = [(shared, number) for number in range(len(shards))]
    with work.combined([ids], settings.etl):
        indexed = work.run_tasks(index_shard, tasks, "index entities", "shards")
    num_entities = index.count_entities(shards, indexed, num_previous)
    own: list[list[int]] = [[] for _ in num_entities]
    for place, shard in enumerate(shards):
        own[shard.partition_number].append(place)
    types = [entity_type for entity_type, _ in settings.partitions]
    first_ids = index.counts_before(types, num_entities, Counter())  # of a type, in its earlier partitions
    forgets = settings.today is not None
    tasks = [
        (
            *(settings, partition, [shards[place] for place in places]),
            *([indexed[place].num_named for place in places], first_id, earlier if forgets else None),
        )
        for partition, places, first_id in zip(settings.partitions, own, first_ids, strict=True)
    ]
    written = work.run_tasks(index.write_partition, tasks, "write the entity index", "partitions")
    relations = index.static_relations(settings, counts.relation_counts)
    if settings.dynamic:
        tasks = [(settings, [chunk.name for chunk in chunks if chunk.num_edges])]
        (relations,) = work.run_tasks(index.index_relations, tasks, "number relations")
    checksums = {uri: checksum for own_files, _ in written for uri, checksum in own_files.items()}
    checksums |= relations.checksums
    num_gone = [num for _, num in written]
    num_forgotten = [before - now for before, now in zip(num_earlier, num_previous, strict=True)]
    return index.IndexedEntities(
        shards, indexed, num_previous, num_entities, relations, checksums, num_gone, num_forgotten
    )
