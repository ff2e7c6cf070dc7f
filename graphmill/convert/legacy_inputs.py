"""Inputs of a run in other formats than PBG v1: they become PBG v1 before the stage begins.

Such inputs are legacy entities and edges (`entity_count_*.pt`, edge files numbered from 1), an `init_path` of
any format, and a legacy outdir as `checkpoint_path`. graphmill/convert/legacy.py names the files.
"""

from graphmill import storage
from graphmill.config import Config
from graphmill.convert import legacy


def import_legacy_inputs(config: Config) -> Config:
    """Import the inputs that are not PBG v1; returns the configuration with the imported paths.

    Raises:
        FormatError: a source is damaged, or its index base is unclear (see train.index_base).
    """
    target = config.checkpoint_path.rstrip("/") + ".adopted"
    index_base = config.train.index_base
    legacy.import_outdir(config.checkpoint_path, index_base)
    changed: dict[str, object] = {}
    entity_path = config.entity_path
    if legacy.is_legacy_input(entity_path):
        edge_paths = [*config.edge_paths, *_other_splits(config)]
        entity_path, edges = legacy.import_inputs(entity_path, edge_paths, target, index_base)
        changed["entity_path"] = entity_path
        changed["edge_paths"] = edges[: len(config.edge_paths)]
        changed["edge_root"] = storage.parent(edges[0])
    if config.init_path is not None:
        changed["init_path"] = legacy.import_init(config.init_path, target, entity_path, index_base)
    return config.model_copy(update=changed)


def _other_splits(config: Config) -> list[str]:
    """Folders of edge files beside edge_paths."""
    others = [entry.uri for entry in storage.list_dir(config.edge_root) if entry.is_dir]
    return [uri for uri in others if uri not in config.edge_paths and _has_edge_files(uri)]


def _has_edge_files(uri: str) -> bool:
    return any(storage.name(entry.uri).startswith("edges_") for entry in storage.list_dir(uri))
