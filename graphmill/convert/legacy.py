"""Import of legacy input and of checkpoints of other formats into PBG v1; export of input as legacy.

    {checkpoint_path}.adopted/
        entities/       from a legacy entityPath        _SUCCESS
        edges/{name}/   from each of edgePaths          _SUCCESS
        init/           from an init_path of any format _SUCCESS

Each folder appears as a whole, with a marker that names its sources. The folder is made again only when a
source changes. A legacy outdir gets v1's files beside its own files; checkpoint_version.txt, written last,
commits them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from graphmill import checkpoints, convert, storage
from graphmill.checkpoints import pbg
from graphmill.checkpoints.legacy import inputs as legacy
from graphmill.checkpoints.legacy.inputs import IndexBase
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.run import fingerprints, lock
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_folder
from graphmill.storage import Checksums
from graphmill.vocab import Bucket

EDGES = "edges"

_OURS = (
    r"_SUCCESS|checksums\.xxh128|entity_count_.+\.(?:txt|pt)|dynamic_rel_count\.(?:txt|pt)|edges_\d+_\d+\.h5"
)
_BATCH_EDGES = 1 << 20

Counts = Mapping[str, Sequence[int]]

log = logging.getLogger("graphmill")


def import_legacy_inputs(config: Config) -> Config:
    """Import the inputs of a run that are not PBG v1; returns the configuration with the imported paths."""
    target = config.checkpoint_path.rstrip("/") + ".adopted"
    index_base = config.train.index_base
    import_outdir(config.checkpoint_path, index_base)
    changed: dict[str, object] = {}
    entity_path = config.entity_path
    if _has_files(entity_path, "entity_count_", ".pt"):
        beside = [entry.uri for entry in storage.list_dir(config.edge_root) if entry.is_dir]
        others = [uri for uri in beside if uri not in config.edge_paths and _has_files(uri, "edges_")]
        edge_paths = [*config.edge_paths, *others]
        with lock.held(whole=[target]) as claim:
            entity_path, edges = convert_inputs(entity_path, edge_paths, target, index_base, claim)
        changed["entity_path"] = entity_path
        changed["edge_paths"] = edges[: len(config.edge_paths)]
        changed["edge_root"] = storage.parent(edges[0])
    if config.init_path is not None:
        changed["init_path"] = import_init(config.init_path, target, entity_path, index_base)
    return config.model_copy(update=changed)


def _has_files(uri: str, beginning: str, end: str = "") -> bool:
    names = (storage.name(entry.uri) for entry in storage.list_dir(uri))
    return any(name.startswith(beginning) and name.endswith(end) for name in names)


def import_init(init_path: str, target_uri: str, entity_path: str, index_base: IndexBase) -> str:
    """Import a checkpoint of another format, and return an init_path of v1; the given path for PBG v1.

    `entity_path` has the partitions for formats without partitions: others are another import.
    """
    source_format = checkpoints.recognise(init_path)
    if source_format == "pbg":
        return init_path
    counts = entity_counts.list_counts(entity_path)
    made_from = {
        "source": fingerprints.describe_inputs([init_path]),
        "index_base": index_base,
        "counts": counts,
    }
    imported = storage.join(target_uri, "init")
    if storage.read_marker(imported) != made_from:
        log.info("importing init_path %s, which is %s", init_path, source_format)
        with lock.held(whole=[target_uri]) as claim:
            storage.delete(imported)
            done = convert.convert(
                init_path, imported, "pbg", entity_path=entity_path, index_base=index_base, claim=claim
            )
            for line in done.not_kept:
                log.info("importing init_path: not kept: %s", line)
            storage.write_marker(imported, made_from)
    return imported


def import_outdir(checkpoint_path: str, index_base: IndexBase) -> None:
    """Add v1's files to a legacy outdir, so that training continues from its version."""
    if not _has_files(checkpoint_path, "CHECKPOINT_VERSION") or pbg.read_version(checkpoint_path):
        return
    from graphmill.checkpoints.legacy.checkpoint import LegacyCheckpoint  # imports torch
    from graphmill.checkpoints.pbg.checkpoint import write

    source = LegacyCheckpoint(checkpoint_path, index_base=index_base)
    if not source.version:
        raise FormatError(
            f"{checkpoint_path}: a legacy checkpoint of version 0 holds initial values; use it as init_path"
        )
    log.info("importing the legacy checkpoint %s, %s", checkpoint_path, convert.described(source))
    write(source, checkpoint_path)


def convert_inputs(
    entity_path: str,
    edge_paths: Sequence[str],
    target_uri: str,
    index_base: IndexBase,
    claim: Claim = NO_CLAIM,
) -> tuple[str, tuple[str, ...]]:
    """Make the missing and outdated folders of entities and edges below `target_uri`; return all folders."""
    _check_target(entity_path, edge_paths, target_uri)
    base = legacy.find_index_base(entity_path, edge_paths, index_base)
    log.info("importing legacy input, numbered from %d: %s and its edges", base, entity_path)
    counts = legacy.read_counts(entity_path, base)

    def import_folder(folder: str, sources: list[str], write: Callable[[str, Checksums], None]) -> None:
        made_from = {"source": fingerprints.describe_inputs(sources)}  # whose names tell the base
        if storage.read_marker(folder) != made_from:
            checksums: Checksums = {}
            with storage.atomic_directory(folder) as temporary:
                write(temporary, checksums)
                storage.write_checksums(storage.manifest_of(temporary).uri, checksums)
                storage.write_marker(temporary, made_from)
                claim.check()

    entities = storage.join(target_uri, convert.ENTITIES)
    import_folder(entities, [entity_path], partial(_write_counts, entity_path, counts))
    imported = edge_targets(edge_paths, target_uri)
    for edge_path, edges in zip(edge_paths, imported, strict=True):
        import_folder(edges, [entity_path, edge_path], partial(_write_buckets, edge_path, base, counts))
    return entities, tuple(imported)


def _write_counts(source_path: str, counts: Counts, target_path: str, checksums: Checksums) -> None:
    for entity_type, rows in counts.items():
        for partition, count in enumerate(rows):
            entity_counts.write_count(target_path, entity_type, partition, count, checksums)
    num_relations = legacy.read_relation_count(source_path)
    if num_relations is not None:
        entity_counts.write_relation_count(target_path, num_relations, checksums)


def _write_buckets(edge_path: str, base: int, counts: Counts, target_path: str, checksums: Checksums) -> None:
    for stored in edge_buckets.list_buckets(edge_path):
        bucket = Bucket(stored.lhs - base, stored.rhs - base)
        # The entity types of a relation are in the configuration: training checks against them.
        lhs_limit, rhs_limit = (_largest(counts, number) for number in bucket)
        dtype = np.int32 if max(lhs_limit, rhs_limit) <= np.iinfo(np.int32).max else np.int64
        uri = edge_buckets.bucket_uri(edge_path, stored)
        num_edges = edge_buckets.count_edges(edge_path, stored, versioned=False)
        with edge_buckets.new_bucket(
            target_path, bucket, num_edges, index_dtype=dtype, checksums=checksums
        ) as writer:
            row = 0
            for edges in legacy.iter_edges(edge_path, bucket, base, _BATCH_EDGES):
                edge_buckets.check_indices(edges, uri, lhs_limit, rhs_limit, np.iinfo(dtype).max, row)
                writer.append(edges)
                row += len(edges)


def _largest(counts: Counts, partition: int) -> int:
    """Rows of the largest partition with this number, over all types."""
    tables = (rows * (partition + 1) if len(rows) == 1 else rows for rows in map(list, counts.values()))
    return max((table[partition] for table in tables if partition < len(table)), default=0)


def export_inputs(entity_path: str, edge_paths: Sequence[str], target_uri: str, claim: Claim) -> list[str]:
    """Write v1's input in the legacy layout, numbered from 1, and return the lost content."""
    from graphmill.formats.torch_files.write import save  # imports torch

    _check_target(entity_path, edge_paths, target_uri)
    with storage.atomic_directory(storage.join(target_uri, convert.ENTITIES)) as temporary:
        for entity_type, counts in entity_counts.list_counts(entity_path).items():
            for partition, count in enumerate(counts):
                save(legacy.count_uri(temporary, entity_type, partition + 1), count)
        if storage.exists(storage.join(entity_path, entity_counts.RELATION_COUNT)):
            num_relations = entity_counts.read_relation_count(entity_path)
            save(storage.join(temporary, legacy.RELATION_COUNT), num_relations)
        claim.check()
    weighted = False
    for edge_path, edges in zip(edge_paths, edge_targets(edge_paths, target_uri), strict=True):
        with storage.atomic_directory(edges) as temporary:
            for bucket in edge_buckets.list_buckets(edge_path):
                num_edges = edge_buckets.count_edges(edge_path, bucket)
                weighted = weighted or edge_buckets.has_weights(edge_path, bucket)
                batches = (
                    edge_buckets.read_bucket(edge_path, bucket, start, start + _BATCH_EDGES)
                    for start in range(0, num_edges, _BATCH_EDGES)
                )
                legacy.write_bucket(temporary, bucket, 1, num_edges, batches)
            claim.check()
    return ["weights of edges"] if weighted else []


def _check_target(entity_path: str, edge_paths: Sequence[str], target_uri: str) -> None:
    """Refuse a target that holds other files than PBG's input, or contains the source."""
    for folder in (storage.join(target_uri, convert.ENTITIES), *edge_targets(edge_paths, target_uri)):
        source = next((uri for uri in (entity_path, *edge_paths) if storage.contains(folder, uri)), None)
        if source is not None:
            raise ConfigError(f"{folder} is replaced as a whole, and {source} is read; name another target")
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
