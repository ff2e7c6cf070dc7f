"""Raw ids of RecIS' tables by a map of ids: the tables are first sorted by raw id, beside the output.

.embeddings.by_raw_id.tmp-*/     deleted in the end
    checkpoint/                  PBG v1
    entities/                    raw ids of its rows
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphmill import convert, storage
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import recognise
from graphmill.checkpoints.id_maps import IdMaps
from graphmill.config import Config
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import ConfigError
from graphmill.formats.id_maps import IdMap

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Sources:
    """TrainedRun of a run, the partitions of each type, and lines about ids that are left out."""

    trained: TrainedRun
    num_partitions: dict[str, int]
    left_out: list[str]


@contextmanager
def open_sources(config: Config, settings: RemapConfig) -> Iterator[Sources]:
    """Find the inputs; with maps of ids, make them for the time of the block."""
    num_partitions = select_types(config, settings)
    if not settings.id_maps:
        yield Sources(TrainedRun.chosen(config), num_partitions, [])
        return
    check_maps(config, settings)
    num = max(num_partitions.values())
    maps = {name: IdMap(settings.id_maps[name], settings.id_map_columns) for name in num_partitions}
    beside = f"{config.embedding_path.rstrip('/')}.by_raw_id"
    storage.recover(beside)
    folder = storage.temporary_sibling(beside)
    try:
        done = convert.convert(
            config.checkpoint_path,
            folder,
            "pbg",
            id_maps=IdMaps(maps, num, config.seed, settings.leave_out_ids),
            allow_non_finite=settings.allow_non_finite,
        )
        for line in done.source.left_out:
            log.warning("remap: not written: %s", line)
        entity_path = storage.join(folder, convert.ENTITIES)
        checkpoint_path = storage.join(folder, convert.CHECKPOINT)
        version = max(done.target.version, 1)
        trained = TrainedRun(
            config.model_copy(update={"entity_path": entity_path}),
            checkpoint_path,
            version,
            "entity_index",
            settings.allow_non_finite,
        )
        yield Sources(trained, dict.fromkeys(num_partitions, num), done.source.left_out)
    finally:
        storage.delete(folder)


def check_maps(config: Config, settings: RemapConfig) -> None:
    """Refuse maps of ids for another format than RecIS', or for some of the types alone."""
    if (found := recognise(config.checkpoint_path)) != "recis":
        raise ConfigError(
            f"remap.id_maps: expected a checkpoint of RecIS, found the format {found} in "
            f"{config.checkpoint_path}"
        )
    for name in select_types(config, settings):
        if name not in settings.id_maps:
            raise ConfigError(
                f"remap.id_maps: there is no map of {name!r}; add --id-map {name}=FILE, or leave the type "
                "out with remap.entity_types"
            )


def select_types(config: Config, settings: RemapConfig) -> dict[str, int]:
    """Choose the entity types to remap; return their numbers of partitions."""
    for number, entity_type in enumerate(settings.entity_types or ()):
        if entity_type not in config.entities:
            raise ConfigError(
                f"remap.entity_types[{number}]: {entity_type!r} is not among the entities: "
                f"{', '.join(config.entities)}"
            )
    return {
        entity_type: entity.num_partitions
        for entity_type, entity in config.entities.items()
        if settings.entity_types is None or entity_type in settings.entity_types
    }
