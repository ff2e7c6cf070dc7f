"""Conversion of legacy input to v1, with indices checked against the counts, and of v1 to legacy.

{target}/entities/        counts
{target}/edges/{name}/    buckets, one folder per edge path, with the same name
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphmill import storage
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.pbg_legacy import inputs as legacy
from graphmill.formats.pbg_legacy.index_base import IndexBase
from graphmill.run import record
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_folder
from graphmill.storage import Checksums
from graphmill.vocab import Bucket

ENTITIES = "entities"
EDGES = "edges"

_OURS = (
    r"_SUCCESS|checksums\.xxh128|entity_count_.+\.(?:txt|pt)|dynamic_rel_count\.(?:txt|pt)|edges_\d+_\d+\.h5"
)
_BATCH_EDGES = 1 << 20

log = logging.getLogger("graphmill")


def adopt(
    entity_path: str,
    edge_paths: Sequence[str],
    target_uri: str,
    index_base: IndexBase,
    claim: Claim = NO_CLAIM,
) -> tuple[str, tuple[str, ...]]:
    """Make entity path and edge paths below `target_uri`, where they are missing or out of date.

    Raises:
        ConfigError: the target holds other files than PBG's input, or contains the source.
        FormatError: the names fit no index base, or an edge has an unknown entity.
    """
    _check_target(entity_path, edge_paths, target_uri)
    base = legacy.find_index_base(entity_path, edge_paths, index_base)
    log.info("adopting legacy input, numbered from %d: %s and its edges", base, entity_path)
    made_from = {"source": record.describe_inputs([entity_path]), "index_base": base}
    entities = storage.join(target_uri, ENTITIES)
    counts = legacy.read_counts(entity_path, base)
    if _is_missing(entities, made_from):
        with storage.atomic_directory(entities) as temporary:
            checksums = _write_counts(temporary, counts, legacy.read_relation_count(entity_path))
            storage.write_checksums(storage.manifest_of(temporary).uri, checksums)
            storage.write_marker(temporary, made_from)
            claim.check()
    adopted = edge_targets(edge_paths, target_uri)
    for edge_path, edges in zip(edge_paths, adopted, strict=True):
        made_from = {"source": record.describe_inputs([entity_path, edge_path]), "index_base": base}
        if _is_missing(edges, made_from):
            with storage.atomic_directory(edges) as temporary:
                checksums = {}
                for bucket in legacy.list_buckets(edge_path, base):
                    _write_bucket(temporary, edge_path, bucket, base, counts, checksums)
                storage.write_checksums(storage.manifest_of(temporary).uri, checksums)
                storage.write_marker(temporary, made_from)
                claim.check()
    return entities, tuple(adopted)


def _is_missing(uri: str, made_from: Mapping[str, object]) -> bool:
    return storage.read_marker(uri) != made_from


def _write_counts(
    entity_path: str, counts: Mapping[str, Sequence[int]], num_relations: int | None
) -> Checksums:
    checksums: Checksums = {}
    for entity_type, each in counts.items():
        for partition, count in enumerate(each):
            entity_counts.write_count(entity_path, entity_type, partition, count, checksums)
    if num_relations is not None:
        entity_counts.write_relation_count(entity_path, num_relations, checksums)
    return checksums


def _write_bucket(
    target_path: str,
    edge_path: str,
    bucket: Bucket,
    base: int,
    counts: Mapping[str, Sequence[int]],
    checksums: Checksums,
) -> None:
    # The entity types of a relation are in the configuration: training checks against them.
    limits = [_largest(counts, number) for number in bucket]
    uri = legacy.bucket_uri(edge_path, bucket, base)
    num_edges = legacy.count_edges(edge_path, bucket, base)
    dtype = np.int32 if max(limits) <= np.iinfo(np.int32).max else np.int64
    with edge_buckets.new_bucket(
        target_path, bucket, num_edges, index_dtype=dtype, checksums=checksums
    ) as writer:
        for first_row, edges in _batches(edge_path, bucket, base):
            edge_buckets.check_indices(edges, uri, limits[0], limits[1], np.iinfo(dtype).max, first_row)
            writer.append(edges)


def _batches(edge_path: str, bucket: Bucket, base: int) -> Iterator[tuple[int, Edges]]:
    first_row = 0
    for columns in legacy.iter_edges(edge_path, bucket, base, _BATCH_EDGES):
        yield first_row, Edges(*columns)
        first_row += len(columns[0])


def _largest(counts: Mapping[str, Sequence[int]], partition: int) -> int:
    """Rows of the largest partition of that number over all types."""
    tables = (each * (partition + 1) if len(each) == 1 else each for each in map(list, counts.values()))
    return max((each[partition] for each in tables if partition < len(each)), default=0)


def export(
    entity_path: str, edge_paths: Sequence[str], target_uri: str, claim: Claim = NO_CLAIM
) -> list[str]:
    """Write v1's input in the legacy layout, numbered from 1; returns what is not kept.

    Raises:
        FormatError: the input is damaged, or has lists of features.
    """
    _check_target(entity_path, edge_paths, target_uri)
    with storage.atomic_directory(storage.join(target_uri, ENTITIES)) as temporary:
        for entity_type, counts in entity_counts.list_counts(entity_path).items():
            for partition, count in enumerate(counts):
                legacy.write_count(temporary, entity_type, partition + 1, count)
        if storage.exists(storage.join(entity_path, entity_counts.RELATION_COUNT)):
            legacy.write_relation_count(temporary, entity_counts.read_relation_count(entity_path))
        claim.check()
    weighted = False
    for edge_path, edges in zip(edge_paths, edge_targets(edge_paths, target_uri), strict=True):
        with storage.atomic_directory(edges) as temporary:
            for bucket in legacy.list_buckets(edge_path, 0):
                num_edges = edge_buckets.count_edges(edge_path, bucket)
                weighted = weighted or edge_buckets.has_weights(edge_path, bucket)
                batches = _columns(edge_path, bucket, num_edges)
                legacy.write_bucket(temporary, bucket, 1, num_edges, batches)
            claim.check()
    return ["weights of edges"] if weighted else []


def _check_target(entity_path: str, edge_paths: Sequence[str], target_uri: str) -> None:
    """Refuse a target that holds other files than PBG's input, or contains the source."""
    for folder in (storage.join(target_uri, ENTITIES), *edge_targets(edge_paths, target_uri)):
        source = next((uri for uri in (entity_path, *edge_paths) if storage.contains(folder, uri)), None)
        if source is not None:
            raise ConfigError(
                f"{folder} is replaced as a whole, and {source} is read from; name another target"
            )
        check_folder(folder, _OURS, "target", "and is replaced as a whole")


def edge_targets(edge_paths: Sequence[str], target_uri: str) -> list[str]:
    """One folder per edge path, with the same name; a repeated name gets a number."""
    targets: list[str] = []
    for number, edge_path in enumerate(edge_paths):
        target = storage.join(target_uri, EDGES, storage.name(edge_path))
        while target in targets:
            target = f"{target}-{number}"
        targets.append(target)
    return targets


def _columns(
    edge_path: str, bucket: Bucket, num_edges: int
) -> Iterator[tuple[legacy.Indices, legacy.Indices, legacy.Indices]]:
    for start in range(0, num_edges, _BATCH_EDGES):
        edges = edge_buckets.read_bucket(edge_path, bucket, start, start + _BATCH_EDGES)
        yield edges.lhs.astype(np.int64), edges.rel.astype(np.int64), edges.rhs.astype(np.int64)
