"""The ETL stage: raw edge tables -> entity index and counts, and a bucket file for every bucket.

    1  encode      each chunk of rows: its distinct ids, and its edges as numbers into them
    2  index       each partition: the ids of all chunks, ordered by (hash, raw id)
    3  translate   each chunk: numbers -> indices, edges sorted by bucket
    4  merge       each run of adjacent buckets: the bucket files

Only paths and counts pass through Dask; everything else goes through files in a work folder on storage that
all workers reach. The outputs grow in temporary folders, which get their names at the end: a kill at any
point leaves the previous output, or the new one. What a killed run left is removed by the next.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from distributed import Client

from etl.bucket_edges import merge, plan_runs, translate
from etl.config import EtlConfig
from etl.encode_edges import Chunk, encode_source
from etl.hashing import HASH_NAME
from etl.index_entities import IndexedPart, id_ranges, index_part, index_relations, slot_groups
from etl.layout import Layout
from etl.outputs import check_outputs, hide_outputs, output_uris, work_folder
from etl.read_tables import Source, find_sources
from etl.spill import Int64
from etl.table_files import files_of
from graphmill import record, storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import ConfigError, RawTableError
from graphmill.formats.entity_index import Manifest, part_uri, write_manifest

__all__ = ["fingerprint", "output_uris", "run"]

# Settings that decide how the work is cut, and not what comes out.
_CUTTING = {"chunk_rows", "index_bytes", "merge_bytes", "work_path"}


def run(config: Config, client: Client) -> dict[str, Any]:
    """Do the stage's work; its figures.

    Raises:
        ConfigError: the tables do not fit the relations, or the outputs would replace foreign files.
        RawTableError: a table lacks a column, or holds a row that cannot become an edge.
        NotFoundError: a table's file does not exist.
    """
    etl = config.section("etl", EtlConfig)
    _check_relations(config, etl)
    check_outputs(config)
    clock = _Clock()
    with ExitStack() as outputs:
        work_uri = outputs.enter_context(work_folder(config, etl))
        folders = [outputs.enter_context(storage.atomic_directory(uri)) for uri in output_uris(config)]
        entity_uri, split_uris = folders[0], dict(zip(etl.splits(), folders[1:], strict=True))
        layout = Layout.of(config, etl, work_uri=work_uri, entity_uri=entity_uri, split_uris=split_uris)
        with clock("plan"):
            sources = _plan(client, config, etl)
        with clock("encode"):
            chunks = _encode(client, layout, sources)
        with clock("index"):
            groups, parts, num_relations = _index(client, layout, chunks)
        with clock("translate"):
            num_edges = _translate(client, layout, chunks, groups)
        with clock("merge"):
            _merge(client, layout, chunks, num_edges)
        write_manifest(entity_uri, Manifest(HASH_NAME, config.seed, layout.num_partitions))
        _sweep(layout)
        hide_outputs(config)
    counts = _figures(layout, sources, chunks, parts, num_edges.sum(axis=0))
    return counts | {"num_relations": num_relations, "step_seconds": clock.seconds}


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the output depends on."""
    etl = config.section("etl", EtlConfig)
    files = sorted({uri for table in etl.tables for uri in files_of(config, table)})
    return {
        "etl": etl.model_dump(mode="json", exclude=_CUTTING),
        "entities": {name: entity.num_partitions for name, entity in config.entities.items()},
        "relations": [[each.name, each.lhs, each.rhs] for each in config.relations],
        "dynamic_relations": config.dynamic_relations,
        "seed": config.seed,
        "hash": HASH_NAME,
        "inputs": record.describe_inputs(files),
    }


def _check_relations(config: Config, etl: EtlConfig) -> None:
    """Refuse a table whose constant relation is unknown.

    Raises:
        ConfigError: it is not in the configuration, and relations are not dynamic.
    """
    known = [relation.name for relation in config.relations]
    for number, table in enumerate(etl.tables):
        if table.relation is not None and table.relation not in known and not config.dynamic_relations:
            raise ConfigError(
                f"etl.tables[{number}].relation: {table.relation!r} is not among the relations: "
                f"{', '.join(known)}"
            )


def _plan(client: Client, config: Config, etl: EtlConfig) -> list[Source]:
    files = [
        (number, table, uri, etl.chunk_rows)
        for number, table in enumerate(etl.tables)
        for uri in files_of(config, table)
    ]
    found = run_tasks(client, find_sources, files, description="etl: look at tables", unit="files")
    return [source for sources in found for source in sources]


def _encode(client: Client, layout: Layout, sources: list[Source]) -> list[Chunk]:
    tasks = [(layout, source, number) for number, source in enumerate(sources)]
    encoded = run_tasks(client, encode_source, tasks, description="etl: encode", unit="sources")
    chunks = [chunk for of_source in encoded for chunk in of_source]
    if not chunks:
        raise RawTableError("etl.tables: the tables hold no rows; there is nothing to make a graph of")
    return chunks


def _index(
    client: Client, layout: Layout, chunks: list[Chunk]
) -> tuple[list[list[range]], list[IndexedPart], int]:
    uris = [chunk.uri for chunk in chunks]
    num_ids = np.sum([chunk.num_ids for chunk in chunks], axis=0)
    id_bytes = np.sum([chunk.id_bytes for chunk in chunks], axis=0)
    groups = [slot_groups(*of_part, layout.index_bytes) for of_part in zip(num_ids, id_bytes, strict=True)]
    tasks = [(layout, number, uris, of_part) for number, of_part in enumerate(groups)]
    parts = run_tasks(client, index_part, tasks, description="etl: index entities", unit="partitions")
    if not layout.dynamic:
        return groups, parts, len(layout.relations)
    description = "etl: number relations"
    num_relations = run_tasks(client, index_relations, [(layout, uris)], description=description)[0]
    return groups, parts, num_relations


def _translate(client: Client, layout: Layout, chunks: list[Chunk], groups: list[list[range]]) -> Int64:
    """Edges of each bucket of each split in each chunk: [chunks, splits x buckets]."""
    counts = [chunk.num_relations for chunk in chunks]
    first_relations = (np.cumsum(counts) - counts).tolist()
    tasks = list(
        zip([layout] * len(chunks), chunks, id_ranges(layout, chunks, groups), first_relations, strict=True)
    )
    return np.array(run_tasks(client, translate, tasks, description="etl: translate", unit="chunks"))


def _merge(client: Client, layout: Layout, chunks: list[Chunk], num_edges: Int64) -> None:
    tasks = []
    for run_of_buckets in plan_runs(layout, num_edges.sum(axis=0)):
        flat = run_of_buckets.flat
        holding = np.flatnonzero(num_edges[:, flat.start : flat.stop].sum(axis=1))
        uris = [chunks[number].uri for number in holding]
        tasks.append((layout, run_of_buckets, uris))
    run_tasks(client, merge, tasks, description="etl: write buckets", unit="runs")


def _sweep(layout: Layout) -> None:
    """Remove what workers that died left in the folders that are about to get their names."""
    indices = [storage.parent(part_uri(layout.entity_uri, name, 0)) for name in layout.entity_types]
    for folder in (layout.entity_uri, *indices, *layout.split_uris.values()):
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


def _figures(
    layout: Layout, sources: list[Source], chunks: list[Chunk], parts: list[IndexedPart], num_edges: Int64
) -> dict[str, Any]:
    """Counts for run.json; `num_edges` is [splits x buckets]."""
    entities: dict[str, list[int]] = {name: [] for name in layout.entity_types}
    outside = dict.fromkeys(layout.entity_types, 0)
    for (entity_type, _), part in zip(layout.parts(), parts, strict=True):
        entities[entity_type].append(part.num_entities)
        outside[entity_type] += part.num_outside_train
    by_split = dict(zip(layout.splits, num_edges.reshape(len(layout.splits), -1), strict=True))
    return {
        "num_rows": sum(chunk.num_rows for chunk in chunks),
        "num_edges": {split: int(counts.sum()) for split, counts in by_split.items()},
        "num_entities": entities,
        # These get embeddings that no edge ever trains.
        "num_entities_outside_train": outside,
        "buckets": {
            split: {
                "num_buckets": len(counts),
                "num_empty": int((counts == 0).sum()),
                "min_edges": int(counts.min()),
                "mean_edges": float(counts.mean()),
                "max_edges": int(counts.max()),
            }
            for split, counts in by_split.items()
        },
        "integer_id_columns": sorted({column for source in sources for column in source.integer_columns}),
        "num_chunks": len(chunks),
    }
