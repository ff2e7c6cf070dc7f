"""The ETL stage: raw edge tables -> entity index and counts, and a bucket file for every bucket.

    1  encode      each chunk of rows: its distinct ids, and its edges as numbers into them
    2  index       each shard of a partition: the ids of all chunks, ordered by (hash, raw id); then each
                   partition: its shards joined
    3  translate   each chunk: numbers -> indices, edges sorted by bucket
    4  merge       each run of adjacent buckets: the bucket files

Only paths and counts pass through Dask; everything else goes through files in a work folder on storage that
all workers reach. The outputs grow in temporary folders, which get their names at the end: a kill at any
point leaves the previous output, or the new one. What a killed run left is removed by the next.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from distributed import Client

from etl import figures
from etl.balance import balanced
from etl.bucket_edges import Numbering, Translated, merge, plan_runs, translate
from etl.check_config import check_config
from etl.config import EtlConfig, FilesConfig
from etl.encode_edges import Chunk, Encoded, encode_source
from etl.figures import Counts
from etl.hashing import HASH_NAME
from etl.index_entities import (
    MAX_COUNTED_RELATIONS,
    Index,
    IndexedRelations,
    Shard,
    count_entities,
    first_ids,
    first_indices,
    id_ranges,
    index_relations,
    index_shard,
    plan_shards,
    rare_relations,
    write_part,
)
from etl.layout import Layout
from etl.outputs import check_outputs, hide_outputs, output_folders, output_uris, quarantine_uri, work_folder
from etl.previous import file_previous, num_previous_ids, previous_counts
from etl.sources import Source, find_sources
from etl.spill import Int64
from etl.table_files import files_of
from graphmill import record, storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import RawTableError
from graphmill.formats import graphstorm
from graphmill.formats.entity_index import Manifest, part_uri, write_manifest
from graphmill.storage import Checksums

__all__ = ["fingerprint", "output_uris", "run"]

# Settings that decide how the work is cut or where things go, and not what comes out.
_CUTTING = {
    "chunk_rows",
    "index_bytes",
    "merge_bytes",
    "spill_compression",
    "work_path",
    "quarantine_path",
    "previous_entity_path",
}


def run(config: Config, client: Client) -> dict[str, Any]:
    """Do the stage's work; its figures.

    Raises:
        ConfigError: the tables do not fit the relations, or the outputs would replace foreign files.
        RawTableError: a table lacks a column, or holds a row that cannot become an edge.
        NotFoundError: a table's file does not exist.
    """
    etl = config.section("etl", EtlConfig)
    check_config(config, etl)
    check_outputs(config)
    clock = _Clock()
    with work_folder(config, etl) as work_uri, output_folders(config, etl, work_uri) as folders:
        with clock("plan"):
            sources = _plan(client, config, etl)
        num_rows = sum(source.num_rows for source in sources)
        num_ids = 2 * num_rows + num_previous_ids(etl.previous_entity_path)
        layout = Layout.of(config, etl, folders, num_ids)
        with clock("encode"):
            encoded = _encode(client, config, layout, sources)
        chunks = [chunk for of_source in encoded for chunk in of_source.chunks]
        with clock("index"):
            index = _index(client, layout, chunks)
        with clock("translate"):
            translated = _translate(client, layout, chunks, index)
        with clock("merge"):
            num_edges, checksums = _merge(client, layout, chunks, translated)
        checksums |= index.checksums
        manifest = Manifest(HASH_NAME, config.seed, layout.num_partitions)
        write_manifest(folders.entities, manifest, checksums)
        _write_checksums(layout, checksums)
        _sweep(layout)
        counts = Counts(sources, encoded, index, translated, num_edges)
        found = figures.figures(layout, counts)
        figures.warn_if_uneven(layout, num_edges)
        hide_outputs(config)
    return found | {"step_seconds": clock.seconds}


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the output depends on."""
    etl = config.section("etl", EtlConfig)
    inputs = sorted({uri for _, table in _tables(etl) for uri in files_of(config, table)})
    if etl.previous_entity_path is not None:
        inputs.append(storage.absolute(etl.previous_entity_path))
    return {
        "etl": etl.model_dump(mode="json", exclude=_CUTTING),
        "entities": {name: entity.num_partitions for name, entity in config.entities.items()},
        "featurized": sorted(name for name, entity in config.entities.items() if entity.featurized),
        "relations": [[each.name, each.lhs, each.rhs] for each in config.relations],
        "dynamic_relations": config.dynamic_relations,
        "seed": config.seed,
        "hash": HASH_NAME,
        "inputs": record.describe_inputs(inputs),
    }


def _tables(etl: EtlConfig) -> list[tuple[str, FilesConfig]]:
    """All tables, with the names that figures call them by."""
    return [
        *((f"tables[{number}]", table) for number, table in enumerate(etl.tables)),
        *((f"entities[{number}]", table) for number, table in enumerate(etl.entities)),
    ]


def _plan(client: Client, config: Config, etl: EtlConfig) -> list[Source]:
    files = [
        (label, table, uri, etl.chunk_rows)
        for label, table in _tables(etl)
        for uri in files_of(config, table)
    ]
    found = run_tasks(client, find_sources, files, description="etl: look at tables", unit="files")
    sources = [source for of_file in found for source in of_file]
    return balanced(sources, sum(client.nthreads().values()))


def _encode(client: Client, config: Config, layout: Layout, sources: list[Source]) -> list[Encoded]:
    tasks = [(layout, source, number) for number, source in enumerate(sources)]
    encoded = run_tasks(client, encode_source, tasks, description="etl: encode", unit="sources")
    if layout.folders.quarantine is not None:
        etl = config.section("etl", EtlConfig)
        uri = storage.absolute(quarantine_uri(config, etl))
        try:
            figures.check_bad_rows(encoded, etl.max_bad_fraction, uri)
        except RawTableError:  # the rows are what the user wants to see
            storage.delete_marker(uri)
            storage.commit_directory(layout.folders.quarantine, uri)
            raise
    if not any(chunk.num_edges for each in encoded for chunk in each.chunks):
        raise RawTableError(
            "etl.tables: the tables hold no rows that become edges; there is nothing to make a graph of"
        )
    return encoded


def _index(client: Client, layout: Layout, chunks: list[Chunk]) -> Index:
    uris = [chunk.uri for chunk in chunks]
    num_previous = previous_counts(layout)
    tasks: list[tuple[Any, ...]] = [(layout, number) for number, count in enumerate(num_previous) if count]
    filed = iter(run_tasks(client, file_previous, tasks, description="etl: read the earlier index"))
    previous = [next(filed) if count else [] for count in num_previous]
    num_ids: Int64 = np.array([chunk.num_ids for chunk in chunks]).sum(axis=0, dtype=np.int64)
    id_bytes: Int64 = np.array([chunk.id_bytes for chunk in chunks]).sum(axis=0, dtype=np.int64)
    for slots, blocks in zip(layout.part_slots(), previous, strict=True):
        for block in blocks:
            num_ids[slots.start : slots.stop] += block.num_ids
            id_bytes[slots.start : slots.stop] += block.id_bytes
    shards = plan_shards(layout, num_ids, id_bytes)
    tasks = [(layout, shard, uris, previous[shard.part_number]) for shard in shards]
    indexed = run_tasks(client, index_shard, tasks, description="etl: index entities", unit="shards")
    num_entities = count_entities(shards, indexed, num_previous)
    by_part: list[list[Shard]] = [[] for _ in num_entities]
    for shard in shards:
        by_part[shard.part_number].append(shard)
    tasks = [
        (layout, number, *rest)
        for number, rest in enumerate(zip(by_part, first_ids(layout, num_entities), strict=True))
    ]
    written = run_tasks(
        client, write_part, tasks, description="etl: write the entity index", unit="partitions"
    )
    rare, names = rare_relations(layout, chunks), tuple(name for name, _, _ in layout.relations)
    few = len(names) <= MAX_COUNTED_RELATIONS
    relations = IndexedRelations(len(names), len(rare), names if few else None)
    if layout.dynamic:
        with_edges = [chunk.uri for chunk in chunks if chunk.num_edges]
        description = "etl: number relations"
        relations = run_tasks(client, index_relations, [(layout, with_edges)], description=description)[0]
    checksums = _joined([*written, relations.checksums])
    return Index(shards, indexed, num_previous, num_entities, relations, checksums)


def _joined(parts: list[Checksums]) -> Checksums:
    return {uri: checksum for part in parts for uri, checksum in part.items()}


def _translate(client: Client, layout: Layout, chunks: list[Chunk], index: Index) -> list[Translated]:
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
    return run_tasks(client, translate, tasks, description="etl: translate", unit="chunks")


def _merge(
    client: Client, layout: Layout, chunks: list[Chunk], translated: list[Translated]
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
    written = run_tasks(client, merge, tasks, description="etl: write buckets", unit="runs")
    num_written = np.array([count for each in written for count in each.num_edges], np.int64)
    return num_written, _joined([each.checksums for each in written])


def _write_checksums(layout: Layout, checksums: Checksums) -> None:
    """Write a manifest into each folder, of the files that are in it."""
    for folder in (layout.folders.entities, *layout.folders.splits.values()):
        inside = {uri: each for uri, each in checksums.items() if uri.startswith(folder + "/")}
        storage.write_checksums(storage.manifest_of(folder).uri, inside)


def _sweep(layout: Layout) -> None:
    """Remove what workers that died left in the folders that are about to get their names."""
    folders = layout.folders
    swept = [folders.entities, *folders.splits.values()]
    swept += [storage.parent(part_uri(folders.entities, name, 0)) for name in layout.entity_types]
    if layout.graphstorm_maps:
        uris = [graphstorm.raw_id_map_uri(folders.entities, name, 0) for name in layout.entity_types]
        swept += [storage.parent(uri) for uri in uris]
    if folders.quarantine is not None:
        swept.append(folders.quarantine)
    for folder in swept:
        storage.sweep(folder)


class _Clock:
    """Seconds that each step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Time one step."""
        start = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - start, 3)
