"""The ETL stage: raw edge tables -> entity index and counts, and a bucket file for every bucket.

    1  encode      each chunk of rows: its distinct ids, and its edges as numbers into them
    2  index       each shard of a partition: the ids of all chunks, ordered by (hash, raw id); then each
                   partition: its shards joined
    3  translate   each chunk: numbers -> indices, edges sorted by bucket
    4  merge       each run of adjacent buckets: the bucket files

Only paths and counts pass through Dask; everything else goes through files in a work folder on storage that
all workers reach. The outputs grow in temporary folders, which get their names at the end: a kill at any
point leaves the previous output, or the new one. The next run goes on after the last step that is finished
(`etl.work`).
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from distributed import Client

from etl.config import EtlConfig, Table
from etl.run import figures
from etl.run.check_config import check_config
from etl.run.figures import Counts
from etl.run.outputs import check_outputs, hide_outputs, output_uris, quarantine_uri
from etl.run.work import Work, kept_work
from etl.steps.bucket_edges import Numbering, Translated, merge, plan_runs, translate
from etl.steps.encode_edges import Chunk, Encoded, encode_source
from etl.steps.index_entities import (
    MAX_COUNTED_RELATIONS,
    Index,
    IndexedRelations,
    count_entities,
    first_ids,
    first_indices,
    id_ranges,
    index_relations,
    plan_shards,
    rare_relations,
    write_part,
)
from etl.steps.index_shard import Shard, index_shard
from etl.steps.layout import Layout
from etl.steps.previous import file_previous, num_previous_ids, previous_counts
from etl.steps.spill import Int64
from etl.strings.hashing import HASH_NAME
from etl.tables.balance import balanced
from etl.tables.files import files_of
from etl.tables.sources import Source, find_sources
from graphmill import storage
from graphmill.config import Config, Effect
from graphmill.errors import FormatError, RawTableError
from graphmill.formats.entity_index import Manifest, write_manifest
from graphmill.run import record
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums

__all__ = ["check", "check_outputs", "fingerprint", "output_uris", "run", "written_uris"]

written_uris = output_uris

# Neutral settings with which work that was begun cannot be continued.
_CUTTING = {name for name, effect in EtlConfig.effects().items() if effect is Effect.NEUTRAL} - {
    "work_path",
    "work_replication",
}


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Refuse what cannot be done, before anything is changed.

    Raises:
        ConfigError: the tables do not fit the relations, or the outputs would replace foreign files.
    """
    check_config(config, config.section(EtlConfig))
    check_outputs(config)
    return ""


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Do the stage's work; its figures.

    Raises:
        ConfigError: the tables do not fit the relations, or the outputs would replace foreign files.
        RawTableError: a table lacks a column, or holds a row that cannot become an edge.
        NotFoundError: a table's file does not exist.
    """
    check(config)
    etl = config.section(EtlConfig)
    made_from = fingerprint(config)
    cutting = etl.model_dump(mode="json", include=_CUTTING)
    with kept_work(client, config, made_from | {"cutting": cutting}, claim) as work:
        sources = work.step("plan", list[Source], lambda: _plan(work, client, config, etl))
        num_rows = sum(source.num_rows for source in sources)
        num_ids = 2 * num_rows + num_previous_ids(etl.previous_entity_path)
        layout = Layout.of(config, etl, work.folders, num_ids)
        encoded = work.step("encode", list[Encoded], lambda: _encode(work, config, layout, sources, claim))
        chunks = [chunk for of_source in encoded for chunk in of_source.chunks]
        _check_places(made_from, layout, sources, chunks)
        index = work.step("index", Index, lambda: _index(work, layout, chunks))
        figures.warn_if_crowded(layout, index)
        translated = work.step("translate", list[Translated], lambda: _translate(work, layout, chunks, index))
        num_edges, checksums = work.step(
            "merge", tuple[Int64, Checksums], lambda: _merge(work, layout, chunks, translated)
        )
        checksums |= index.checksums
        manifest = Manifest(HASH_NAME, config.seed, layout.num_partitions)
        write_manifest(work.folders.entities, manifest, checksums)
        _write_checksums(layout, checksums)
        _sweep(work)
        counts = Counts(sources, encoded, index, translated, num_edges)
        found = figures.figures(layout, counts)
        figures.warn_if_uneven(layout, num_edges)
        claim.check()
        hide_outputs(config)
    return found | {"step_seconds": work.seconds}


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the output depends on."""
    etl = config.section(EtlConfig)
    inputs = sorted({uri for _, table in _tables(etl) for uri in files_of(config, table)})
    if etl.previous_entity_path is not None:
        inputs.append(storage.absolute(etl.previous_entity_path))
    return {
        "etl": etl.result_settings(),
        "entities": {name: entity.num_partitions for name, entity in config.entities.items()},
        "featurized": sorted(name for name, entity in config.entities.items() if entity.featurized),
        "relations": [[each.name, each.lhs, each.rhs] for each in config.relations],
        "dynamic_relations": config.dynamic_relations,
        "seed": config.seed,
        "hash": HASH_NAME,
        "inputs": record.describe_inputs(inputs),
    }


def _tables(etl: EtlConfig) -> list[tuple[str, Table]]:
    """All tables, with the names that figures call them by."""
    return [
        *((f"tables[{number}]", table) for number, table in enumerate(etl.tables)),
        *((f"entities[{number}]", table) for number, table in enumerate(etl.entities)),
    ]


def _plan(work: Work, client: Client, config: Config, etl: EtlConfig) -> list[Source]:
    files = [
        (label, table, uri, etl.chunk_rows)
        for label, table in _tables(etl)
        for uri in files_of(config, table)
    ]
    found = work.run_tasks(find_sources, files, description="etl: look at tables", unit="files")
    sources = [source for of_file in found for source in of_file]
    return balanced(sources, sum(client.nthreads().values()))


def _check_places(
    made_from: dict[str, Any], layout: Layout, sources: list[Source], chunks: list[Chunk]
) -> None:
    """Refuse files that nobody but a journal names.

    Raises:
        FormatError: there are some.
    """
    inputs = {each.get("uri") for each in made_from["inputs"]}
    found = [source.uri for source in sources if source.uri not in inputs]
    found += [chunk.uri for chunk in chunks if storage.parent(chunk.uri) != layout.folders.work]
    if found:
        raise FormatError(
            f"{layout.folders.work}: what an earlier run left there names {found[0]}, which is none of this "
            "run's files; start again, from nothing"
        )


def _encode(work: Work, config: Config, layout: Layout, sources: list[Source], claim: Claim) -> list[Encoded]:
    tasks = [(layout, source, number) for number, source in enumerate(sources)]
    encoded = work.run_tasks(encode_source, tasks, description="etl: encode", unit="sources")
    if layout.folders.quarantine is not None:
        etl = config.section(EtlConfig)
        uri = storage.absolute(quarantine_uri(config, etl))
        try:
            figures.check_bad_rows(encoded, etl.max_bad_fraction, uri)
        except RawTableError:  # the rows are what the user wants to see
            claim.check()
            storage.delete_marker(uri)
            storage.commit_directory(layout.folders.quarantine, uri)
            raise
    if not any(chunk.num_edges for each in encoded for chunk in each.chunks):
        raise RawTableError(
            "etl.tables: the tables hold no rows that become edges; there is nothing to make a graph of"
        )
    return encoded


def _index(work: Work, layout: Layout, chunks: list[Chunk]) -> Index:
    uris = [chunk.uri for chunk in chunks]
    num_previous = previous_counts(layout)
    tasks: list[tuple[Any, ...]] = [(layout, number) for number, count in enumerate(num_previous) if count]
    filed = iter(work.run_tasks(file_previous, tasks, description="etl: read the earlier index"))
    previous = [next(filed) if count else [] for count in num_previous]
    num_ids: Int64 = np.array([chunk.num_ids for chunk in chunks]).sum(axis=0, dtype=np.int64)
    id_bytes: Int64 = np.array([chunk.id_bytes for chunk in chunks]).sum(axis=0, dtype=np.int64)
    for slots, blocks in zip(layout.part_slots(), previous, strict=True):
        for block in blocks:
            num_ids[slots.start : slots.stop] += block.num_ids
            id_bytes[slots.start : slots.stop] += block.id_bytes
    shards = plan_shards(layout, num_ids, id_bytes)
    tasks = [(layout, shard, uris, previous[shard.part_number]) for shard in shards]
    indexed = work.run_tasks(index_shard, tasks, description="etl: index entities", unit="shards")
    num_entities = count_entities(shards, indexed, num_previous)
    by_part: list[list[Shard]] = [[] for _ in num_entities]
    for shard in shards:
        by_part[shard.part_number].append(shard)
    tasks = [
        (layout, number, *rest)
        for number, rest in enumerate(zip(by_part, first_ids(layout, num_entities), strict=True))
    ]
    written = work.run_tasks(write_part, tasks, description="etl: write the entity index", unit="partitions")
    rare, names = rare_relations(layout, chunks), tuple(name for name, _, _ in layout.relations)
    few = len(names) <= MAX_COUNTED_RELATIONS
    relations = IndexedRelations(len(names), len(rare), names if few else None)
    if layout.dynamic:
        with_edges = [chunk.uri for chunk in chunks if chunk.num_edges]
        description = "etl: number relations"
        relations = work.run_tasks(index_relations, [(layout, with_edges)], description=description)[0]
    checksums = _joined([*written, relations.checksums])
    return Index(shards, indexed, num_previous, num_entities, relations, checksums)


def _joined(parts: list[Checksums]) -> Checksums:
    return {uri: checksum for part in parts for uri, checksum in part.items()}


def _translate(work: Work, layout: Layout, chunks: list[Chunk], index: Index) -> list[Translated]:
    first = first_indices(index)
    ranges = id_ranges(layout, chunks, index.shards)
    rare = rare_relations(layout, chunks)
    tasks = []
    first_relation = 0
    for chunk, of_chunk in zip(chunks, ranges, strict=True):
        if chunk.num_edges:
            numbering = Numbering(
                index.shards, first, of_chunk, first_relation, index.relations.num_relations, rare
            )
            tasks.append((layout, chunk, numbering))
            first_relation += chunk.num_relations
    return work.run_tasks(translate, tasks, description="etl: translate", unit="chunks")


def _merge(
    work: Work, layout: Layout, chunks: list[Chunk], translated: list[Translated]
) -> tuple[Int64, Checksums]:
    """Edges of each bucket of each split, [splits x buckets], and the checksums of all bucket files."""
    with_edges = [chunk for chunk in chunks if chunk.num_edges]
    num_edges = np.array([each.num_edges for each in translated])
    num_features = {
        side: np.sum([each.num_features[side] for each in translated], axis=0)
        for side in layout.feature_sides
    }
    tasks = []
    for run_of_buckets in plan_runs(layout, num_edges.sum(axis=0), num_features):
        flat = run_of_buckets.flat
        holding = np.flatnonzero(num_edges[:, flat.start : flat.stop].sum(axis=1))
        tasks.append((layout, run_of_buckets, [with_edges[number].uri for number in holding]))
    written = work.run_tasks(merge, tasks, description="etl: write buckets", unit="runs")
    num_written = np.array([count for each in written for count in each.num_edges], np.int64)
    return num_written, _joined([each.checksums for each in written])


def _write_checksums(layout: Layout, checksums: Checksums) -> None:
    """Write a manifest into each folder, of the files that are in it."""
    for folder in (layout.folders.entities, *layout.folders.splits.values()):
        inside = {uri: each for uri, each in checksums.items() if uri.startswith(folder + "/")}
        storage.write_checksums(storage.manifest_of(folder).uri, inside)


def _sweep(work: Work) -> None:
    """Remove what workers and runs that died left in the folders that are about to get their names."""
    for folder in work.outputs.values():
        below = [entry.uri for entry in storage.list_dir(folder, recursive=True) if entry.is_dir]
        for each in (folder, *below):
            storage.sweep(each)
