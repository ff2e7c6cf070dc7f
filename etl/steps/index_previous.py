"""The entity index of an earlier run, whose ids keep their indices.

Its ids are written slot by slot, as those of a chunk:

    previous-{type}-{partition}-{block}.ids   id: string, index: int32; a section per slot of the partition
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from etl.steps import spill
from etl.steps.gone import kept_rows
from etl.steps.task_settings import Partition, TaskSettings
from etl.strings import native
from etl.tables.blocks import cut
from graphmill import storage
from graphmill.config import Config
from graphmill.config.defaults import ENTITIES
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.murmur import HASH_NAME
from graphmill.storage.as_json import Int64

SCHEMA = pa.schema([("id", pa.string()), ("index", pa.int32())])


@dataclass(frozen=True, eq=False)
class PreviousBlock:
    """Ids of one partition of the earlier index."""

    uri: str
    num_ids: Int64
    """[slots of the partition]."""
    id_bytes: Int64
    """[slots of the partition]."""


def check_previous(config: Config, previous_uri: str) -> None:
    """Refuse an earlier index whose ids could not keep their indices."""
    if storage.absolute(previous_uri).rstrip("/") == storage.absolute(config.entity_path).rstrip("/"):
        raise ConfigError(
            f"etl.previous_entity_path: {previous_uri} is where this run's entities go; give it an `output` "
            "of its own, and keep the earlier one"
        )
    manifest = entity_index.read_manifest(previous_uri)
    changes: list[tuple[str, object, object]] = [
        (f"entities.{name}.num_partitions", manifest.num_partitions[name], entity.num_partitions)
        for name, entity in config.entities.items()
        if name in manifest.num_partitions and name not in config.uncut_types
    ]
    changes += [("seed", manifest.seed, config.seed), ("the hash", manifest.hash_name, HASH_NAME)]
    for what, before, now in changes:
        if before != now:
            raise ConfigError(
                f"etl.previous_entity_path: {previous_uri} has {before!r} for {what}, this configuration "
                f"{now!r}: every id would move; set it back, or start anew without previous_entity_path"
            )


def as_before(config: Config) -> Config:
    """Take the number of partitions from the earlier index, for types that leave it out."""
    uri = config.section(EtlConfig).previous_entity_path
    kept = entity_index.read_manifest(uri).num_partitions if uri else {}
    kept = {f"{ENTITIES}{name}": kept[name] for name in config.uncut_types if name in kept}
    others = {key: value for key, value in config.chosen.items() if key not in kept}
    return config.with_chosen(kept).with_chosen(others) if kept else config


def num_previous_ids(previous_uri: str | None) -> int:
    """Count the ids of the earlier index."""
    if previous_uri is None:
        return 0
    num_partitions = entity_index.read_manifest(previous_uri).num_partitions
    return sum(map(sum, entity_counts.read_counts(previous_uri, num_partitions).values()))


def previous_ids(settings: TaskSettings, partition: Partition) -> Iterator[pa.Array]:
    """Read the ids of a partition of the earlier index, if it has that partition, without forgotten ids."""
    uri = settings.etl.previous_entity_path
    if uri is None or partition.entity_type not in entity_index.read_manifest(uri).num_partitions:
        return
    rows = kept_rows(settings, partition)
    start = 0
    for ids in entity_index.iter_part(uri, *partition):
        if rows is None:
            yield ids
            continue
        first, past = np.searchsorted(rows, [start, start + len(ids)])
        yield ids.take(pa.array(rows[first:past] - start))
        start += len(ids)


def previous_counts(settings: TaskSettings) -> list[int]:
    """Count the ids of each partition of the earlier index, forgotten ones too."""
    uri = settings.etl.previous_entity_path or ""
    known = _known(settings)
    return [
        _count(uri, partition) if partition.entity_type in known else 0 for partition in settings.partitions
    ]


def _known(settings: TaskSettings) -> dict[str, int]:
    """Return the number of partitions of each type of this run that the earlier index has."""
    uri = settings.etl.previous_entity_path
    known = {} if uri is None else entity_index.read_manifest(uri).num_partitions
    return {name: num for name, num in settings.num_partitions.items() if name in known}


def num_earlier_ids(settings: TaskSettings) -> dict[str, list[int]] | None:
    """Count the ids of the earlier index by type and partition; None unless the run forgets ids."""
    if settings.today is None:
        return None
    return entity_counts.read_counts(settings.etl.previous_entity_path or "", _known(settings))


def _count(previous_uri: str, partition: Partition) -> int:
    count = entity_counts.read_count(previous_uri, *partition)
    num_ids = entity_index.count_part(previous_uri, *partition)
    if count != num_ids:  # new ids would get indices of other ids
        raise FormatError(
            f"{entity_index.part_uri(previous_uri, *partition)}: expected {count} ids, as "
            f"{entity_counts.count_uri(previous_uri, *partition)} says, found {num_ids}: they are not from "
            "the same run"
        )
    return count


def file_previous(settings: TaskSettings, partition: Partition) -> list[PreviousBlock]:
    """Write the ids of one partition of the earlier index slot by slot."""
    previous_uri = settings.etl.previous_entity_path or ""
    num_slots = settings.num_slots[partition.entity_type]
    batches = (pa.table({"id": ids}) for ids in previous_ids(settings, partition))
    blocks: list[PreviousBlock] = []
    num_earlier = 0
    for block in cut(batches, settings.etl.chunk_rows):
        ids = pa.concat_arrays(block["id"].chunks)
        hashes = native.hash_strings(ids, settings.seed)
        slots = settings.slots_of(partition.entity_type, hashes) - partition.number * num_slots
        outside = np.flatnonzero((slots < 0) | (slots >= num_slots))
        if outside.size:
            row = int(outside[0])
            raise FormatError(
                f"{entity_index.part_uri(previous_uri, *partition)}: raw id {ids[row].as_py()!r} (index "
                f"{num_earlier + row}) belongs to another partition by {HASH_NAME} with seed {settings.seed}"
            )
        order = np.argsort(slots, kind="stable")
        index = np.arange(num_earlier, num_earlier + len(ids), dtype=np.int32)[order]
        batch = pa.record_batch([ids.take(pa.array(order)), pa.array(index)], schema=SCHEMA)
        name = f"previous-{partition.entity_type}-{partition.number}-{len(blocks):06d}.ids"
        uri = storage.join(settings.folders.work, name)
        blocks.append(PreviousBlock(uri, *spill.count_slots(ids, slots, num_slots)))
        spill.write_slots(uri, SCHEMA, [(batch, blocks[-1].num_ids)], settings.etl)
        num_earlier += len(ids)
    return blocks


def previous_relations(settings: TaskSettings) -> list[str]:
    """Read the dynamic relations of the earlier run, in the order of their numbers."""
    uri = settings.etl.previous_entity_path
    if uri is None:
        return []
    names = entity_counts.read_relation_names(uri)
    if names is None:
        raise ConfigError(
            f"etl.previous_entity_path: {uri} names no relations; dynamic relations could "
            "not keep their numbers"
        )
    return names
