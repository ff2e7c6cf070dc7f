"""Inputs of an evaluation: folders of edges, the settings that scores depend on, and the number of edges that
are ranked: all of them within its budget, else a sample. Without torch.

The budget is counted, not timed, so that equal inputs give equal metrics. A score of a ranking costs one
product of D numbers. A training edge has num_batch_negs + num_uniform_negs negatives and itself on both
sides, and each score costs a product forward and two backward. So training, in scores of a ranking, takes

    edges x epochs x 2 x (1 + negatives) x 3

and a ranking may take `evaluate.budget` of it. ALWAYS scores are minutes, and always allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphmill import storage
from graphmill.ask.edges import Numbers, known_paths
from graphmill.checkpoints import pbg
from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import all_buckets
from graphmill.display.readable import number
from graphmill.errors import ConfigError, NotFoundError
from graphmill.formats import edge_buckets
from graphmill.run import fingerprints
from graphmill.vocab import Side

# Scores depend on these keys: the configuration and the checkpoint must agree on them.
_SCORE_KEYS = ("dimension", "comparator", "bias", "global_emb", "dynamic_relations")
_RELATION_KEYS = ("name", "lhs", "rhs", "operator")

ALWAYS = 10**13
"""Products of two numbers that are always allowed: 10^11 scores of 100 dimensions."""


def check_folder(config: Config, key: str, path: str) -> None:
    """Refuse a folder of edges that does not exist; `key` has named it."""
    if not storage.is_dir(path):
        raise ConfigError(f"{key}: there is no folder {path}; {_existing_splits(config)}")


def obstacle_to_ranking(config: Config, path: str) -> str:
    """Return the reason why the edges of a folder cannot be ranked, or ""."""
    names = {relation.entity_type(side) for relation in config.relations for side in Side}
    if types := sorted(name for name in names if config.entities[name].featurized):
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
    if changes := fingerprints.changes(saved, {key: own[key] for key in saved}):
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
    names = map(storage.name, edge_buckets.folders(config.edge_root, config.entity_path))
    return f"splits there: {', '.join(names) or 'none'}"


def score_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a PBG configuration that scores depend on, as far as it has them."""
    settings = {key: config[key] for key in _SCORE_KEYS if key in config}
    settings["relations"] = [
        {key: relation[key] for key in _RELATION_KEYS if key in relation}
        for relation in config.get("relations", [])
    ]
    return settings


def has_edges(config: PbgConfig, path: str) -> bool:
    """Tell whether any bucket of a folder holds an edge."""
    return any(edge_buckets.count_all(path, all_buckets(config)).values())


@dataclass(frozen=True)
class Extent:
    """Edges to rank of those there are, and why, for the log."""

    num_edges: int
    of_edges: int
    reason: str
    is_asked_for: bool = False
    """Whether `evaluate.sample` has decided."""

    @property
    def is_sampled(self) -> bool:
        """Tell whether edges are left out."""
        return self.num_edges < self.of_edges


def extent_of(config: Config, of_edges: int, num_entities: Mapping[str, int], num_trained: int) -> Extent:
    """Choose how many of a split's edges to rank, where training reads `num_trained` edges in an epoch."""
    settings = config.evaluate
    if settings.sample is not None:
        return Extent(min(settings.sample, of_edges), of_edges, f"evaluate.sample is {settings.sample}", True)
    if settings.budget == "unlimited":
        return Extent(of_edges, of_edges, "evaluate.budget is unlimited")
    per_edge = scores_per_edge(config, num_entities)
    training = training_scores(config, num_entities, num_trained)
    dimension = max(config.entity_dimension(name) for name in num_entities)
    allowed = max(settings.budget * training, ALWAYS / dimension)
    affordable = max(1, int(allowed // max(per_edge, 1)))
    share = f"{settings.budget:g} of the training's work" if allowed > ALWAYS / dimension else "some minutes"
    all_edges = number(per_edge * of_edges / allowed)
    reason = f"{number(per_edge)} scores an edge, all edges take {all_edges} times the budget of {share}"
    return Extent(min(affordable, of_edges), of_edges, reason)


def scores_per_edge(config: Config, num_entities: Mapping[str, int]) -> int:
    """Scores of both sides of an edge, for the relation with most candidates."""
    return max(
        sum(num_entities[relation.entity_type(side)] for side in Side) for relation in config.relations
    )


def training_scores(config: Config, num_entities: Mapping[str, int], num_trained: int) -> float:
    """The work of training, in scores of a ranking."""
    negatives = config.num_compared(max(num_entities.values()))
    return float(num_trained) * config.num_epochs * 2 * (1 + negatives) * 3


def told(extent: Extent, split: str) -> str:
    """Say how many edges are ranked, why, and how to rank others."""
    num, total = f"{extent.num_edges:,}", f"{extent.of_edges:,}"
    text = f"evaluate: ranking {num} of {total} edges of {split}, drawn at random: {extent.reason}"
    key = "evaluate.sample: null" if extent.is_asked_for else "evaluate.budget: unlimited"
    return f"{text}; {key} ranks all"


def drawn_rows(seed: int, counts: Sequence[int], num_drawn: int) -> list[Numbers]:
    """Draw rows of files with so many rows each, without replacement; the rows of each file, ascending."""
    ends = np.cumsum([0, *counts])
    total = int(ends[-1])
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.choice(total, min(num_drawn, total), replace=False, shuffle=False))
    places = np.searchsorted(drawn, ends).tolist()
    return [
        drawn[first:last] - end for first, last, end in zip(places, places[1:], ends.tolist(), strict=False)
    ]
