"""The input of remap: its configuration, a version of a checkpoint, and the raw ids of its rows.

The configuration comes from --conf and flags, or from a checkpoint and flags alone. Raw ids of RecIS' tables
come from a map of ids: the tables are first sorted by raw id, beside the output.

.embeddings.by_raw_id.tmp-*/     deleted in the end
    checkpoint/                  PBG v1
    entities/                    raw ids of its rows
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphmill import config, convert, storage
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import open_checkpoint, recognise
from graphmill.checkpoints.id_maps import MOST_FILES, IdMap, IdMaps, parse_id_maps
from graphmill.config import Config
from graphmill.config.sections.remap import RemapConfig
from graphmill.config.yaml_text import as_yaml
from graphmill.errors import ConfigError
from graphmill.run.record import run_of

_SETTINGS = {
    "checkpoint_path": "checkpoint_path",
    "entity_path": "entity_path",
    "output_dir": "embedding_path",
    "output_format": "remap.output_format",
    "output_delimiter": "remap.output_delimiter",
    "output_chunk_size": "remap.rows_per_file",
    "allow_non_finite": "remap.allow_non_finite",
    "leave_out": "remap.leave_out_ids",
}
# A checkpoint may come from anybody: its configuration sets no path, cluster or other section.
_MODEL_KEYS = ("relations", "dimension", "dynamic_relations", "global_emb", "comparator", "loss_fn")
PARTITION_BYTES = 1 << 30
_IGNORED = ("rank", "world_size", "num_processes")

log = logging.getLogger("graphmill")


def load_settings(conf: str | None, overrides: Sequence[str], given: dict[str, Any]) -> Config:
    """Load the configuration, and override settings by the `given` flags."""
    chosen = [f"{_SETTINGS[name]}={_yaml(name, value)}" for name, value in given.items() if name in _SETTINGS]
    names = dict(pair.partition(",")[::2] for pair in given.get("column_names", ()))
    chosen += [f"remap.column_names={as_yaml(names)}"] if names else []
    if "id_maps" in given:
        columns = given.get("id_map_columns")
        uris = {name: map_.uri for name, map_ in parse_id_maps(given["id_maps"], columns).items()}
        keys = {"id_maps": uris} | ({"id_map_columns": columns.split(",")} if columns else {})
        chosen += [f"remap.{key}={as_yaml(keys[key])}" for key in keys]
    foreign = set(given) - {*_SETTINGS, *_IGNORED, "column_names", "id_maps", "id_map_columns"}
    if foreign:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(foreign))
        raise ConfigError(f"{flags}: only together with --node-emb-dir or --prediction-dir")
    if conf is None and "checkpoint_path" in given:
        return _from_checkpoint(given, [*chosen, *overrides])
    return config.load(conf, [*chosen, *overrides])


def _yaml(name: str, value: Any) -> str:
    return as_yaml(storage.absolute(value) if name.endswith(("_path", "_dir")) else value)


def _from_checkpoint(given: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Make the configuration of a checkpoint without a run, from its config.json or its files."""
    path = storage.absolute(given["checkpoint_path"])
    is_mapped = "id_maps" in given
    if not is_mapped and "entity_path" not in given:
        raise ConfigError(
            "--entity-path: missing; the raw ids of the checkpoint's rows are there; or, for hashed ids of "
            "RecIS' tables, --id-map TYPE=FILE"
        )
    entity_path = path if is_mapped else given["entity_path"]
    checkpoint = open_checkpoint(path, entity_path=None if is_mapped else storage.absolute(entity_path))
    num_partitions = checkpoint.num_partitions
    if is_mapped:  # all tables get the number of partitions that the largest one needs
        maps = parse_id_maps(given["id_maps"])
        IdMaps(maps).check_types(list(checkpoint.counts), checkpoint.uri)
        size = max(sum(checkpoint.counts[name]) * 4 * checkpoint.dimensions[name] for name in maps)
        num_partitions = dict.fromkeys(maps, min(MOST_FILES, max(-(-size // PARTITION_BYTES), 1)))
    trained_with = {} if is_mapped else checkpoint.config or {}
    model = {key: value for key, value in trained_with.items() if key in _MODEL_KEYS}
    first = next(iter(num_partitions))
    embeddings = storage.absolute(given.get("output_dir", storage.join(run_of(path), "embeddings")))
    settings: dict[str, Any] = {
        # A configuration needs a relation, which a converted checkpoint may lack; remap uses none.
        "relations": [{"name": "unknown", "lhs": first, "rhs": first}],
        "dimension": checkpoint.dimensions[first],
        **model,
    }
    settings |= {
        "entities": {
            name: {"num_partitions": num, "dimension": checkpoint.dimensions[name]}
            for name, num in num_partitions.items()
        },
        "entity_path": entity_path,
        "checkpoint_path": path,
        "edge_paths": [storage.join(path, "none")],
        "output": storage.parent(embeddings),  # where run.json goes
    }
    try:
        return config.load(None, overrides, transform=lambda raw: settings | raw)
    except ConfigError as error:
        raise ConfigError(f"{path} was trained with, or a flag says: {error}") from error


@contextmanager
def open_sources(
    config: Config, settings: RemapConfig
) -> Iterator[tuple[TrainedRun, dict[str, int], list[str]]]:
    """Find the inputs; with maps of ids, make them for the time of the block.

    Yields:
        the run, the number of partitions of each type, and lines about ids that are left out.
    """
    num_partitions = select_types(config, settings)
    if not settings.id_maps:
        yield TrainedRun.chosen(config), num_partitions, []
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
        yield trained, dict.fromkeys(num_partitions, num), done.source.left_out
    finally:
        storage.delete(folder)


def check_maps(config: Config, settings: RemapConfig) -> None:
    """Refuse maps of ids for another format than RecIS', or for some of the types alone."""
    if (kind := recognise(config.checkpoint_path)) != "recis":
        raise ConfigError(
            f"remap.id_maps: expected a checkpoint of RecIS, found the format {kind} in "
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
        entity_type: num
        for entity_type, num in config.num_partitions.items()
        if settings.entity_types is None or entity_type in settings.entity_types
    }
