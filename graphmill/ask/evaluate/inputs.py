"""Inputs of an evaluation: folders of edges, and the settings that scores depend on. Without torch."""

from typing import Any

from graphmill import storage
from graphmill.ask.edges import known_paths
from graphmill.checkpoints import pbg
from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import all_buckets
from graphmill.errors import ConfigError, NotFoundError
from graphmill.formats import edge_buckets
from graphmill.run import record
from graphmill.vocab import Side

# Scores depend on these keys: the configuration and the checkpoint must agree on them.
_SCORE_KEYS = ("dimension", "comparator", "bias", "global_emb", "dynamic_relations")
_RELATION_KEYS = ("name", "lhs", "rhs", "operator")


def check_folder(config: Config, key: str, path: str) -> None:
    """Refuse a folder of edges that does not exist; `key` has named it."""
    if not storage.is_dir(path):
        raise ConfigError(f"{key}: there is no folder {path}; {_existing_splits(config)}")


def obstacle_to_ranking(config: Config, path: str) -> str:
    """Return the reason why the edges of a folder cannot be ranked, or ""."""
    if types := featurized_types(config):
        return f"{', '.join(types)}: a featurized type has no list of all its entities to rank"
    if not storage.is_dir(path):
        return f"there is no folder {path} of edges held out; {_existing_splits(config)}"
    return "" if has_edges(config, path) else f"{path} holds no edges"


def check_same_model(config: Config) -> None:
    """Refuse a checkpoint of another model: its parameters would give other scores."""
    try:
        saved = score_settings(pbg.read_config(config.checkpoint_path))
    except NotFoundError:
        return  # loading checks the shapes of the parameters
    own = score_settings(config.pbg())
    if changes := record.changes(saved, {key: own[key] for key in saved}):
        raise ConfigError(
            f"{config.checkpoint_path} was trained with other settings: {'; '.join(changes)}; set this back, "
            "or train again"
        )


def filter_paths(config: Config) -> list[str]:
    """Folders of known edges, which a filtered ranking leaves out."""
    settings = config.evaluate
    if not settings.filtered:
        return []
    if settings.filter_paths is not None:
        return list(settings.filter_paths)
    return list(dict.fromkeys([*known_paths(config), config.split_path(settings.split).rstrip("/")]))


def calibration_path(config: Config) -> str | None:
    """Folder of the edges that calibrate probabilities; None where there is none to use."""
    settings = config.evaluate
    if settings.calibrate is None:
        return None  # answers are compared with all candidates
    path = config.split_path(settings.calibrate).rstrip("/")
    used = [used_path.rstrip("/") for used_path in (*config.edge_paths, config.split_path(settings.split))]
    return path if path not in used and storage.is_dir(path) else None


def _existing_splits(config: Config) -> str:
    splits = (
        ", ".join(storage.name(path) for path in edge_buckets.folders(config.edge_root, config.entity_path))
        or "none"
    )
    return f"splits there: {splits}"


def score_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a PBG configuration that scores depend on, as far as it has them."""
    settings = {key: config[key] for key in _SCORE_KEYS if key in config}
    settings["relations"] = [
        {key: relation[key] for key in _RELATION_KEYS if key in relation}
        for relation in config.get("relations", [])
    ]
    return settings


def has_edges(config: PbgConfig, path: str) -> bool:
    """Whether any bucket of a folder holds an edge."""
    return any(edge_buckets.count_all(path, all_buckets(config)).values())


def featurized_types(config: PbgConfig) -> list[str]:
    """Featurized types of relations: without a list of all their entities, nothing can rank them."""
    names = {relation.entity_type(side) for relation in config.relations for side in Side}
    return sorted(name for name in names if config.entities[name].featurized)
