"""Checkpoint + raw ids -> embeddings keyed by raw id, one Dask task a partition, committed as one folder.

embeddings/                             replaced whole, once every row is there and counted
    {type}/part-{partition:05d}.parquet
"""

from typing import Any

from distributed import Client

from graphmill import record, storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import ConfigError, StorageError
from graphmill.formats import remapped
from remap.config import RemapConfig
from remap.discover import Part, check_partitions, find_source, measure_part, select_types
from remap.join import write_part


def run(config: Config, client: Client) -> dict[str, Any]:
    """Write the embeddings of every entity under its raw id; figures: rows and files of each type.

    What was there stays until the new folder is complete, and is then replaced.

    Raises:
        NotFoundError: there is no checkpoint, or a part of it or of the raw ids is missing.
        FormatError: checkpoint, counts and raw ids do not fit each other.
        ConfigError: an entity type or a version is not there, or the output folder holds other files.
    """
    settings = config.section("remap", RemapConfig)
    num_partitions = select_types(config, settings)
    source = find_source(config, settings)
    check_partitions(source, num_partitions)
    _check_replaceable(config.embedding_path)
    places = [
        (source, entity_type, partition, config.entity_dimension(entity_type))
        for entity_type, num in num_partitions.items()
        for partition in range(num)
    ]
    parts: list[Part] = run_tasks(client, measure_part, places, description="measuring", unit="partitions")
    with storage.atomic_directory(config.embedding_path) as folder:
        arguments = [(source, part, folder, settings) for part in parts]
        run_tasks(client, write_part, arguments, description="remapping", unit="partitions")
        _check_complete(folder, parts)
    return {
        "checkpoint_version": source.version,
        "raw_ids_from": source.id_source.value,
        "num_rows": sum(part.num_rows for part in parts),
        "num_files": len(parts),
        "types": {
            entity_type: {
                "num_rows": sum(part.num_rows for part in parts if part.entity_type == entity_type),
                "dimension": config.entity_dimension(entity_type),
            }
            for entity_type in num_partitions
        },
    }


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the embeddings depend on."""
    settings = config.section("remap", RemapConfig)
    num_partitions = select_types(config, settings)
    return {
        "remap": settings.model_dump(mode="json"),
        "entities": {
            entity_type: {"num_partitions": num, "dimension": config.entity_dimension(entity_type)}
            for entity_type, num in num_partitions.items()
        },
        "inputs": record.describe_inputs([config.entity_path, config.checkpoint_path]),
    }


def output_uris(config: Config) -> list[str]:
    """The one folder that the stage writes."""
    return [config.embedding_path]


def _check_replaceable(embedding_path: str) -> None:
    """Refuse to replace a folder that holds anything but embeddings: it would be deleted with them."""
    for entry in storage.list_dir(embedding_path, recursive=True):
        is_ours = entry.is_dir or remapped.is_part(entry.uri) or storage.name(entry.uri) == storage.MARKER
        if not is_ours:
            raise ConfigError(
                f"embedding_path: {embedding_path} is replaced as a whole, but holds something else, "
                f"{entry.uri}; choose another folder, or move that away"
            )


def _check_complete(folder: str, parts: list[Part]) -> None:
    """Check that the folder holds the file of every part alone; remove what dead workers left unfinished."""
    expected = {remapped.part_uri(folder, part.entity_type, part.partition) for part in parts}
    for type_folder in {storage.parent(uri) for uri in expected}:
        storage.sweep(type_folder)
    found = {entry.uri for entry in storage.list_dir(folder, recursive=True) if not entry.is_dir}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected)[:5])
        raise StorageError(
            f"{folder}: expected {len(expected)} files, one a part; missing or foreign: {wrong}"
        )
