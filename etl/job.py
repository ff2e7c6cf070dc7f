"""The ETL stage: raw edge tables -> entity index and counts, and a bucket file for every bucket.

    plan        cut the files of all tables into ranges
    encode      per chunk of rows: distinct ids, and edges as numbers of these ids
    partitions  number of partitions of the types for which the configuration gives none
    index       per shard of a partition: ids of all chunks, ordered by (hash, raw id); then join the shards
    translate   per chunk: numbers -> indices, edges sorted by bucket
    merge       per run of adjacent buckets: bucket files

Dask carries paths and counts only. All else goes through files in a work folder on storage that all workers
reach. Outputs are written to temporary folders, which are renamed at the end: a kill at any moment leaves
the previous output or the new one. The next run continues after the last finished step (etl/run/work.py).
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client

from etl.run import checks, figures, sources
from etl.run.checks import check_config
from etl.run.outputs import check_outputs as check_outputs
from etl.run.outputs import hide_outputs, quarantine_uri, write_manifests
from etl.run.outputs import output_uris as output_uris
from etl.run.work import EtlWork, kept_work
from etl.steps import exchange, index, index_previous, merge
from etl.steps.bucket_rows import EarlierIds
from etl.steps.chunks import EdgeChunk, Encoded, IdCounts, cut_types
from etl.steps.degrees import count_partition
from etl.steps.encode import encode_ranges, no_ids
from etl.steps.index_shard import IndexPlan, Shard, index_shard, rows_name
from etl.steps.merge import Merged
from etl.steps.task_settings import TaskSettings, day_of
from etl.steps.translate import Translated, TranslatePlan, features_suffix, nothing, translate
from etl.survey import outlook as estimates
from etl.tables.files import TableFiles, find_all, table_roots
from etl.tables.formats import FileRange
from etl.tables.ranges import balanced, grouped, ranges_of_files
from graphmill import cluster, storage
from graphmill.config import Config, Effect
from graphmill.config.defaults import AUTO
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import FormatError, RawTableError
from graphmill.formats.entity_index import Manifest, write_manifest
from graphmill.formats.murmur import HASH_NAME
from graphmill.run import fingerprints
from graphmill.run.job import Estimate, GraphSize
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.vocab import TRAIN_SPLIT

written_uris = output_uris

_LOOKS_PER_THREAD = 16
_MAX_LOOKS = 64

# Neutral settings that cut the work into tasks: unfinished work cannot continue with other values.
_CUTTING = {name for name, effect in EtlConfig.effects().items() if effect is Effect.NEUTRAL} - {
    "compare_files",
    "work_path",
    "work_replication",
}


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Refuse tables that do not fit the relations, before anything is changed."""
    check_config(config)
    return ""


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Do the stage's work, and return its figures."""
    check(config)
    check_outputs(config)
    etl = config.section(EtlConfig)
    inputs = find_all(config)
    made_from = fingerprint(config, inputs)
    cutting = etl.model_dump(mode="json", include=_CUTTING)
    config = index_previous.as_before(config)
    with kept_work(client, config, made_from | {"cutting": cutting}, claim) as work:
        plan = work.step("plan", sources.SourcePlan, lambda: _plan(work, config, inputs))
        checks.warn_of_headers(inputs)
        checks.warn_of_ignored(inputs)
        sources.log_delta(plan)
        ranges = plan.ranges
        num_rows = sum(file_range.num_rows for file_range in ranges)
        num_ids = 2 * num_rows + index_previous.num_previous_ids(etl.previous_entity_path)
        settings = TaskSettings.of(config, work.folders, num_ids)
        encoded, counts = work.step(
            "encode", tuple[list[Encoded], IdCounts], lambda: _encode(work, config, settings, plan, claim)
        )
        checks.warn_of_null_words(encoded)
        files = sources.with_counts(plan, encoded)
        chunks = [chunk for of_range in encoded for chunk in of_range.chunks]
        _check_places(inputs, settings, ranges, chunks)
        memory_bytes = cluster.memory_of_workers(client)
        num_partitions = work.step(
            "partitions", dict[str, int], lambda: cut_types(config, settings, counts.smallest, memory_bytes)
        )
        settings = settings.cut(num_partitions)
        indexed = work.step(
            "index", index.IndexedEntities, lambda: _index(work, settings, chunks, counts, plan.earlier)
        )
        figures.warn_if_crowded(settings, indexed)
        if plan.earlier is None:
            figures.warn_if_apart(settings, indexed)
        translated = work.step("translate", Translated, lambda: _translate(work, settings, chunks, indexed))
        merged = work.step(
            "merge", Merged, lambda: _merge(work, settings, chunks, translated, indexed, plan.earlier)
        )
        checksums = merged.checksums | indexed.checksums
        num_earlier = index_previous.num_earlier_ids(settings)
        manifest = Manifest(HASH_NAME, config.seed, settings.num_partitions, num_earlier)
        write_manifest(work.folders.entities, manifest, checksums)
        sources.write_sources(config, settings, plan, files, checksums)
        write_manifests(settings, merged.num_edges, checksums)
        for folder in work.outputs.values():  # unfinished files of dead workers and runs
            below = [entry.uri for entry in storage.list_dir(folder, recursive=True) if entry.is_dir]
            for uri in (folder, *below):
                storage.sweep(uri)
        numbers = figures.figures(settings, plan, files, encoded, indexed, translated, merged)
        figures.warn_if_uneven(settings, merged.num_edges)
        checks.warn_of_counts(numbers)
        claim.check()
        hide_outputs(config)
    return numbers | {"step_seconds": work.seconds}


def estimate(config: Config, size: GraphSize | None) -> Estimate:
    """Estimate what the stage takes, from the beginnings of the tables."""
    return estimates.estimate(config)


def input_uris(config: Config) -> list[str]:
    """Return the tables, by their folders, and ids and edges of an earlier run."""
    etl = config.section(EtlConfig)
    previous = [uri for uri in (etl.previous_entity_path, etl.previous_edge_path) if uri]
    return [*table_roots(config), *map(storage.absolute, previous)]


def fingerprint(config: Config, tables: Sequence[TableFiles] | None = None) -> dict[str, Any]:
    """Return all that the output depends on, as JSON types."""
    etl = config.section(EtlConfig)
    tables = find_all(config) if tables is None else tables
    plain = {file.uri: file for of_table in tables for file in of_table.plain}
    snapshots = {json.dumps(snapshot): snapshot for of_table in tables for snapshot in of_table.describe()}
    edges = etl.previous_edge_path and storage.join(etl.previous_edge_path, TRAIN_SPLIT)
    inputs = [storage.absolute(uri) for uri in (etl.previous_entity_path, edges) if uri]
    return {
        "etl": etl.result_settings(),
        "entities": config.num_partitions | dict.fromkeys(index_previous.cut_by_etl(config), AUTO),
        "featurized": sorted(name for name, entity in config.entities.items() if entity.featurized),
        "relations": [[relation.name, relation.lhs, relation.rhs] for relation in config.relations],
        "dynamic_relations": config.dynamic_relations,
        "seed": config.seed,
        "hash": HASH_NAME,
        **({} if etl.forget_after is None else {"day": day_of(config)}),
        **({} if etl.compare_files == "time" else {"compare_files": etl.compare_files}),
        "inputs": [
            *({"uri": uri, "files": {"": list(plain[uri].state())}} for uri in sorted(plain)),
            *fingerprints.describe_inputs(inputs),
            *(snapshots[key] for key in sorted(snapshots)),
        ],
    }


def _plan(work: EtlWork, config: Config, inputs: Sequence[TableFiles]) -> sources.SourcePlan:
    etl = config.section(EtlConfig)
    checks.warn_of_left_out(inputs)
    files = sources.numbered(inputs)
    checks.warn_of_empty({of_table.label for of_table in inputs} - {label for _, label, _, _ in files})
    plan = sources.plan_files(config, files)
    kept = plan.kept
    files = [file for file in files if file[0] not in kept]
    # A task costs more than a look at a small file.
    step = min(1 + len(files) // (_LOOKS_PER_THREAD * work.num_threads), _MAX_LOOKS)
    tasks = [(files[start : start + step], etl.chunk_rows) for start in range(0, len(files), step)]
    of_tasks = work.run_tasks(ranges_of_files, tasks, "look at tables")
    ranges = [file_range for of_files in of_tasks for file_range in of_files]
    return replace(plan, ranges=balanced(ranges, work.num_threads))


def _check_places(
    inputs: Sequence[TableFiles], settings: TaskSettings, ranges: list[FileRange], chunks: list[EdgeChunk]
) -> None:
    """Refuse an earlier run's journal that names files outside this run."""
    plain = {file.uri for of_table in inputs for file in of_table.plain}
    of_logs = [snapshot.places for of_table in inputs for snapshot in of_table.snapshots]
    named = {file_range.uri for file_range in ranges}
    named |= {delete.place for one in ranges for delete in one.deletes if delete.kind != "delta inline"}
    foreign = [uri for uri in sorted(named - plain) if not any(places.hold(uri) for places in of_logs)]
    foreign += [chunk.name for chunk in chunks if "/" in chunk.name]
    if foreign:
        raise FormatError(
            f"{settings.folders.work}: the journal of an earlier run names {foreign[0]}, which is none of "
            "this run's files; start again, from nothing"
        )


def _encode(
    work: EtlWork, config: Config, settings: TaskSettings, plan: sources.SourcePlan, claim: Claim
) -> tuple[list[Encoded], IdCounts]:
    groups = grouped(plan.ranges, work.num_threads, settings.etl.chunk_rows)
    shared = work.share("encode", settings, len(groups))
    tasks = [(shared, group, number) for number, group in enumerate(groups)]
    counts = no_ids(settings)

    def add(result: tuple[Encoded, IdCounts]) -> Encoded:
        nonlocal counts
        counts += result[1]
        return result[0]

    encoded = work.run_tasks(encode_ranges, tasks, "encode", keep=add)
    files = sources.with_counts(plan, encoded)
    if settings.folders.quarantine is not None:
        uri = storage.absolute(quarantine_uri(config))
        try:
            figures.check_bad_rows(plan, files, settings.etl.max_bad_fraction, uri)
        except RawTableError:  # the user needs the bad rows to correct them
            claim.check()
            storage.delete_marker(uri)
            storage.replace_directory(settings.folders.quarantine, uri)
            raise
    if not any(file.num_edges for file in files):
        raise RawTableError(
            "etl.tables: the tables hold no rows that become edges; a graph needs at least one"
        )
    return encoded, counts


def _index(
    work: EtlWork,
    settings: TaskSettings,
    chunks: list[EdgeChunk],
    counts: IdCounts,
    earlier: EarlierIds | None,
) -> index.IndexedEntities:
    """Index the ids of all chunks, after those of an earlier index."""
    num_earlier = index_previous.previous_counts(settings)
    known = [number for number, count in enumerate(num_earlier) if count]
    tasks: list[tuple[Any, ...]] = [(settings, settings.partitions[number]) for number in known]
    filed = work.run_tasks(index_previous.file_previous, tasks, "read the earlier index")
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
    own: list[list[Shard]] = [[] for _ in num_entities]
    for shard in shards:
        own[shard.partition_number].append(shard)
    types = [entity_type for entity_type, _ in settings.partitions]
    first_ids = index.counts_before(types, num_entities, Counter())  # of a type, in its earlier partitions
    forgets = settings.today is not None
    tasks = [
        (settings, partition, of_partition, first_id, earlier if forgets else None)
        for partition, of_partition, first_id in zip(settings.partitions, own, first_ids, strict=True)
    ]
    written = work.run_tasks(index.write_partition, tasks, "write the entity index", "partitions")
    relations = index.static_relations(settings, counts.relation_counts)
    if settings.dynamic:
        tasks = [(settings, chunks)]
        (relations,) = work.run_tasks(index.index_relations, tasks, "number relations")
    checksums = {uri: checksum for own_files, _ in written for uri, checksum in own_files.items()}
    checksums |= relations.checksums
    num_gone = [num for _, num in written]
    num_forgotten = [before - now for before, now in zip(num_earlier, num_previous, strict=True)]
    return index.IndexedEntities(
        shards, indexed, num_previous, num_entities, relations, checksums, num_gone, num_forgotten
    )


def _translate(
    work: EtlWork, settings: TaskSettings, chunks: list[EdgeChunk], indexed: index.IndexedEntities
) -> Translated:
    names = [rows_name(settings, shard) for shard in indexed.shards]
    names += [index.RELATION_ROWS] if settings.dynamic else []
    rows = exchange.planned(settings, "rows", names, np.arange(len(chunks) + 1))
    numbers = [shard.partition_number for shard in indexed.shards]
    ends = Counter(dict(enumerate(indexed.num_previous)))
    first = index.counts_before(numbers, [shard.num_new for shard in indexed.indexed], ends)
    plan = TranslatePlan(settings, rows, np.array(numbers), np.array(first), indexed.relations)
    shared = work.share("translate", plan, len(chunks))
    tasks = [(shared, number, chunk) for number, chunk in enumerate(chunks) if chunk.num_edges]
    total = [nothing(settings, indexed.relations.num_relations)]

    def add(result: Translated) -> None:
        total[0] += result

    with work.combined([rows], settings.etl):
        work.run_tasks(translate, tasks, "translate", "chunks", keep=add)
    return total[0]


def _merge(
    work: EtlWork,
    settings: TaskSettings,
    chunks: list[EdgeChunk],
    translated: Translated,
    indexed: index.IndexedEntities,
    earlier: EarlierIds | None,
) -> Merged:
    num_edges, num_records = translated.num_edges, translated.num_edges + translated.num_heads
    earlier_bytes = None if earlier is None else merge.earlier_bytes(settings, earlier)
    runs = merge.plan_runs(settings, num_edges, num_records, translated.num_features, earlier_bytes)
    suffixes = {"edges": ".edges.i32"} | {side: features_suffix(side) for side in settings.feature_sides}
    names = [chunk.name for chunk in chunks if chunk.num_edges]
    bounds = np.array([0, *(run.flat.stop for run in runs)], np.int64)  # of the runs, among all buckets
    edges = [
        exchange.planned(settings, kind, [f"{name}{suffix}" for name in names], bounds)
        for kind, suffix in suffixes.items()
    ]
    counts_anew = earlier is not None or settings.removes  # chunks do not have all edges, or too many
    num_counted = len(translated.relation_counts) if counts_anew else 0
    removing = sorted({number for chunk in chunks if chunk.removes for number, _ in chunk.files})
    shared = work.share("merge", merge.MergePlan(settings, edges, earlier, num_counted, removing), len(runs))
    tasks: list[tuple[Any, ...]] = [(shared, number, run) for number, run in enumerate(runs)]
    with work.combined(edges, settings.etl):
        written = work.run_tasks(merge.merge, tasks, "write buckets", "runs")
    degrees = None
    if counts_anew:
        counted = zip(settings.partitions, indexed.num_entities, strict=True)
        tasks = [(settings, partition, num_entities) for partition, num_entities in counted]
        degrees = work.run_tasks(count_partition, tasks, "count edges of ids", "partitions")
    return Merged(
        np.concatenate([run.num_rows for run in written]),
        np.concatenate([run.num_edges for run in written]),
        sum((run.relation_counts for run in written), np.zeros(num_counted, np.int64)),
        {uri: checksum for run in written for uri, checksum in run.checksums.items()},
        degrees,
    )
