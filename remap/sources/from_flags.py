"""Configuration of the stage, from --conf and flags, or from a checkpoint and flags alone."""

import json
from collections.abc import Sequence
from typing import Any

from graphmill import config, storage
from graphmill.checkpoints import open_checkpoint
from graphmill.config import Config
from graphmill.errors import ConfigError

_SETTINGS = {
    "checkpoint_path": "checkpoint_path",
    "entity_path": "entity_path",
    "output_dir": "embedding_path",
    "output_format": "remap.output_format",
    "output_delimiter": "remap.output_delimiter",
    "output_chunk_size": "remap.rows_per_file",
    "allow_non_finite": "remap.allow_non_finite",
}
# A checkpoint may come from anybody: its configuration sets no path, cluster or other section.
_MODEL_KEYS = ("relations", "dimension", "dynamic_relations", "global_emb", "comparator", "loss_fn")
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
    foreign = set(given) - {*_SETTINGS, *_IGNORED, "column_names"}
    if foreign:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(foreign))
        raise ConfigError(f"{flags}: only together with --node-emb-dir or --prediction-dir")
    if conf is None and "checkpoint_path" in given:
        return _from_checkpoint(given, [*chosen, *overrides])
    return config.load(conf, [*chosen, *overrides])


def _yaml(name: str, value: Any) -> str:
    given = storage.absolute(value) if name.endswith(("_path", "_dir")) else value
    return json.dumps(given, ensure_ascii=False)  # YAML cannot read JSON's surrogate pairs


def _from_checkpoint(given: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Make the configuration of a checkpoint without a run, from its config.json or its files."""
    if "entity_path" not in given:
        raise ConfigError("--entity-path: missing; the raw ids of the checkpoint's rows are there")
    path = storage.absolute(given["checkpoint_path"])
    checkpoint = open_checkpoint(path, entity_path=storage.absolute(given["entity_path"]))
    first = next(iter(checkpoint.num_partitions))
    embeddings = storage.absolute(given.get("output_dir", storage.join(storage.parent(path), "embeddings")))
    settings: dict[str, Any] = {
        # A configuration needs a relation, which a converted checkpoint may lack; remap uses none.
        "relations": [{"name": "unknown", "lhs": first, "rhs": first}],
        "dimension": checkpoint.dimensions[first],
        **{key: value for key, value in (checkpoint.config or {}).items() if key in _MODEL_KEYS},
    }
    settings |= {
        "entities": {
            name: {"num_partitions": num, "dimension": checkpoint.dimensions[name]}
            for name, num in checkpoint.num_partitions.items()
        },
        "entity_path": given["entity_path"],
        "checkpoint_path": path,
        "edge_paths": [storage.join(path, "none")],
        "output": storage.parent(embeddings),  # where run.json goes
    }
    try:
        return config.load(None, overrides, transform=lambda raw: settings | raw)
    except ConfigError as error:
        raise ConfigError(f"{path} was trained with, or a flag says: {error}") from error
