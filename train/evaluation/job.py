"""The evaluation stage: checks in the command's process, which does without torch; ranks on a worker.

Reads the checkpoint, counts and edges (see `train.evaluation.evaluate`). The metrics go to run.json.
"""

import logging
from collections.abc import Collection
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.display.readable import number
from graphmill.formats import pbg_checkpoint
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.outlook import GraphSize, Outlook
from graphmill.run.record import describe_inputs
from graphmill.run.trained_with import changes_in_errors
from train.config import EvaluateConfig
from train.evaluation.inputs import (
    check_folder,
    check_same_model,
    filter_paths,
    obstacle_to_ranking,
    score_settings,
)
from train.tables.legacy_inputs import import_legacy_inputs

log = logging.getLogger("graphmill")


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Evaluate in one task of the cluster; returns the metrics and the evaluated version."""
    with changes_in_errors(config):
        legacy = import_legacy_inputs(config)
        figures = cluster.run_task(client, evaluate, legacy, True, description="evaluate")
    warn_of_unranked(figures)
    if (path := config.split_path(config.section(EvaluateConfig).split)) in config.edge_paths:
        log.warning(
            f"evaluate: {path} is one of edge_paths: if the checkpoint was trained on these edges, the "
            "metrics do not tell how it does on others; train with the other edge_paths"
        )
    return figures


def warn_of_unranked(figures: dict[str, Any]) -> None:
    """Warn of relations without an edge in the split: the metrics say nothing about them."""
    if num := figures["num_relations_unranked"]:
        names = ", ".join(figures["relations_unranked"])
        more = ", ..." if num > len(figures["relations_unranked"]) else ""
        log.warning(
            f"evaluate: {num} relations have no edges in {figures['split']}, and the metrics say nothing "
            f"about them: {names}{more}; hold out more edges (etl.holdout), or choose others"
        )


def evaluate(config: Config, with_baselines: bool = False) -> dict[str, Any]:
    """Evaluate in this process; see `train.evaluation.evaluate.evaluate`."""
    from train.evaluation.evaluate import evaluate  # imports torch: only workers need it

    return evaluate(config, with_baselines=with_baselines)


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Return the reason why there is nothing to evaluate, or ""; the folders `coming` are written later.

    Raises:
        ConfigError: the configuration names a split, or a folder of known edges, that does not exist, or the
            checkpoint belongs to another model.
    """
    settings = config.section(EvaluateConfig)
    if config.checkpoint_path not in coming and pbg_checkpoint.read_version(config.checkpoint_path):
        check_same_model(config)
    path = config.split_path(settings.split)
    named = [("evaluate.filter_paths", each) for each in settings.filter_paths or ()]
    named += [("evaluate.split", path)] if "split" in settings.model_fields_set else []
    for key, each in named:
        if storage.absolute(each) not in coming:
            check_folder(config, key, each)
    return obstacle_to_ranking(config, path)


def outlook(config: Config, size: GraphSize | None) -> Outlook:
    """Estimate the number of scores, which rank each edge against all entities on both sides."""
    num_edges = size.num_edges.get(config.section(EvaluateConfig).split) if size else None
    if size is None or not num_edges:
        return Outlook({}, size)
    largest = max(size.num_entities.values(), default=0)
    num_scores = 2 * num_edges * largest
    text = f"about {number(num_edges)} edges, {number(num_scores)} scores"
    return Outlook({"evaluate": text}, size)


def fingerprint(config: Config) -> dict[str, Any]:
    """The settings and inputs that the metrics depend on."""
    settings = config.section(EvaluateConfig)
    inputs = [config.checkpoint_path, config.entity_path, config.split_path(settings.split)]
    return {
        "evaluate": settings.result_settings(),
        "model": score_settings(config.pbg()),
        **({"plugins": config.plugins.checksums()} if config.plugins else {}),
        "inputs": describe_inputs(dict.fromkeys([*inputs, *filter_paths(config)])),
    }


def output_uris(config: Config) -> list[str]:
    """No folders: the metrics go to run.json."""
    return []


def written_uris(config: Config) -> list[str]:
    """No folders, so a checkpoint can be evaluated while it is trained."""
    return []


def check_outputs(config: Config) -> None:
    """Refuse nothing."""
