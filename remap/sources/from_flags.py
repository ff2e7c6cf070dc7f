"""Configuration of the stage, from --conf and flags, or from a checkpoint and flags alone."""

import json
from collections.abc import Sequence
from typing import Any

from graphmill import config, storage
from graphmill.checkpoints import Checkpoint, open_checkpoint
from graphmill.checkpoints.id_join import MOST_FILES
from graphmill.checkpoints.id_maps import IdMaps, parse_id_maps
from graphmill.config import Config
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
_PARTITION_BYTES = 1 << 30
_IGNORED = ("rank", "world_size", "num_processes")


def load_settings(conf: str | None, overrides: Sequence[str], given: dict[str, Any]) -> Config:
    """Load the configuration, and override settings by the `given` flags.

    Raises:
        ConfigError: a flag is for GraphStorm's files alone, or there is no configuration.
        NotFoundError: a file or the checkpoint is missing.
        FormatError: the format of the checkpoint is unknown.
    """
    chosen = [f"{_SETTINGS[name]}={_yaml(name, value)}" for name, value in given.items() if name in _SETTINGS]
    names = dict(pair.partition(",")[::2] for pair in given.get("column_names", ()))
    chosen += [f"remap.column_names={json.dumps(names, ensure_ascii=False)}"] if names else []
    chosen += _of_maps(given)
    foreign = set(given) - {*_SETTINGS, *_IGNORED, "column_names", "id_maps", "id_map_columns"}
    if foreign:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(foreign))
        raise ConfigError(f"{flags}: only together with --node-emb-dir or --prediction-dir")
    if conf is None and "checkpoint_path" in given:
        return _from_checkpoint(given, [*chosen, *overrides])
    return config.load(conf, [*chosen, *overrides])


def _of_maps(given: dict[str, Any]) -> list[str]:
    """Settings of maps of ids."""
    if "id_maps" not in given:
        return []
    columns = given.get("id_map_columns")
    maps = parse_id_maps(given["id_maps"], columns)
    uris = {name: map_.uri for name, map_ in maps.items()}
    found = {"id_maps": uris} | ({"id_map_columns": columns.split(",")} if columns else {})
    return [f"remap.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]


def _yaml(name: str, value: Any) -> str:
    given = storage.absolute(value) if name.endswith(("_path", "_dir")) else value
    return json.dumps(given, ensure_ascii=False)  # YAML cannot read JSON's surrogate pairs


def _cut_tables(checkpoint: Checkpoint, given: dict[str, Any]) -> dict[str, int]:
    """Give every table with a map of ids the number of partitions that the largest table needs."""
    maps = parse_id_maps(given["id_maps"])
    IdMaps(maps).check_types(list(checkpoint.counts), checkpoint.uri)
    sizes = [sum(checkpoint.counts[name]) * 4 * checkpoint.dimensions[name] for name in maps]
    return dict.fromkeys(maps, min(MOST_FILES, max(-(-max(sizes) // _PARTITION_BYTES), 1)))


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
    num_partitions = _cut_tables(checkpoint, given) if is_mapped else checkpoint.num_partitions
    model = (
        {}
        if is_mapped
        else {key: value for key, value in (checkpoint.config or {}).items() if key in _MODEL_KEYS}
    )
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
