"""The evaluation stage: checks and sums in the command's process, without torch; tasks rank on the workers.

Reads the checkpoint, counts and edges (see `graphmill.ask.evaluate.evaluate`). The metrics go to run.json.
"""

import logging
from collections.abc import Collection
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.ask.edges import known_paths
from graphmill.ask.evaluate import evaluate as evaluation
from graphmill.ask.evaluate.calibrate import calibrate
from graphmill.ask.evaluate.execution import Execution
from graphmill.ask.evaluate.inputs import (
    calibration_path,
    check_folder,
    check_same_model,
    extent_of,
    filter_paths,
    obstacle_to_ranking,
    score_settings,
    scores_per_edge,
)
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.convert.legacy import import_legacy_inputs
from graphmill.display.readable import number
from graphmill.formats import calibration, entity_counts
from graphmill.formats.calibration import Calibration
from graphmill.run.auto_values import num_edges
from graphmill.run.fingerprints import describe_inputs
from graphmill.run.job import Estimate, GraphSize, no_folders, refuse_nothing
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.trained_with import changes_in_errors, check_entities

SMALL_PRODUCTS = 10**12  # products of two numbers: seconds
SMALL_EDGES = 10**7
_WORK = "evaluate"

log = logging.getLogger("graphmill")


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Evaluate on the cluster; returns the metrics and the evaluated version.

    One worker does a small evaluation alone, with all its cores: others would only import torch. So does a
    worker that shares its GPU with the others of its machine.
    """
    listening = cluster.listening(client, evaluation.TOPIC, lambda event: log.info(event[1]["text"]))
    with changes_in_errors(config), listening:
        legacy = import_legacy_inputs(config)
        execution = Execution.on(client, _work_uri(config))
        if execution.num_workers == 1 or config.num_gpus or is_small(legacy):
            figures, fitted = cluster.run_task(client, evaluate_all, legacy, description="evaluate")
        else:
            figures, fitted = evaluate_all(legacy, execution)
    warn_of_unranked(figures)
    if fitted is not None:
        claim.check()
        calibration.write(calibration.uri_beside(config.record_uri(config.checkpoint_path)), fitted)
    if (path := config.split_path(config.evaluate.split)).rstrip("/") in evaluation.trained_paths(config):
        log.warning(
            f"evaluate: {path} is one of edge_paths: if the checkpoint was trained on these edges, the "
            "metrics do not tell how it does on others; train with the other edge_paths"
        )
    return figures


def _work_uri(config: Config) -> str:
    """A new work folder beside run.json; removes those of killed runs, if this run has locked the output."""
    record_uri = config.record_uri(config.checkpoint_path)
    if config.output is not None:
        for leftover in storage.list_hidden(config.output):
            if storage.name(leftover).startswith(f".{storage.name(record_uri)}.{_WORK}-"):
                storage.delete(leftover)
    return storage.temporary_sibling(record_uri, _WORK)


def is_small(config: Config) -> bool:
    """Tell whether an evaluation takes seconds, by the numbers of edges and entities."""
    settings = config.evaluate
    num_ranked = num_edges(config.split_path(settings.split))
    num_ranked = min(settings.sample or num_ranked, num_ranked)
    num_entities = max(map(sum, entity_counts.list_counts(config.entity_path).values()), default=0)
    dimension = max(config.entity_dimension(name) for name in config.entities)
    products = 2 * num_ranked * num_entities * dimension
    return products <= SMALL_PRODUCTS and sum(map(num_edges, config.edge_paths)) <= SMALL_EDGES


def warn_of_unranked(figures: dict[str, Any]) -> None:
    """Warn of relations without an edge in the split: the metrics say nothing about them."""
    if num := figures["num_relations_unranked"]:
        names = ", ".join(figures["relations_unranked"])
        more = ", ..." if num > len(figures["relations_unranked"]) else ""
        place = "the sample of " if figures.get("metrics", {}).get("sampled") else ""
        log.warning(
            f"evaluate: the metrics say nothing about relations without edges in {place}{figures['split']} "
            f"({num}): {names}{more}; hold out more edges (etl.holdout), or choose others"
        )


def evaluate_all(
    config: Config, execution: Execution | None = None
) -> tuple[dict[str, Any], Calibration | None]:
    """Evaluate with baselines, and calibrate; by default in this process."""
    execution = execution or Execution()
    figures = evaluation.evaluate(config, execution, with_baselines=True)
    fitted = calibrate(config, execution)
    return (figures, None) if fitted is None else (figures | {"calibration": fitted[1]}, fitted[0])


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Return the reason why there is nothing to evaluate, or ""; the folders `coming` are written later.

    Raises:
        ConfigError: the configuration names a split, or a folder of known edges, that does not exist, or the
            checkpoint belongs to another model.
    """
    settings = config.evaluate
    if not settings.enabled:
        return "evaluate.enabled is false"
    if config.checkpoint_path not in coming and pbg.read_version(config.checkpoint_path):
        check_same_model(config)
        check_entities(config.checkpoint_path, config.entity_path)
    path = config.split_path(settings.split)
    named = [("evaluate.filter_paths", folder) for folder in settings.filter_paths or ()]
    named += [("evaluate.split", path)] if "split" in settings.model_fields_set else []
    if settings.calibrate is not None and "calibrate" in settings.model_fields_set:
        named.append(("evaluate.calibrate", config.split_path(settings.calibrate)))
    for key, folder in named:
        if storage.absolute(folder) not in coming:
            check_folder(config, key, folder)
    return "" if storage.absolute(path) in coming else obstacle_to_ranking(config, path)


def estimate(config: Config, size: GraphSize | None) -> Estimate:
    """Estimate the number of scores, which rank each edge against all entities on both sides."""
    settings = config.evaluate
    of_edges = size.num_edges.get(settings.split) if size and settings.enabled else None
    listed = {name for name, entity in config.entities.items() if not entity.featurized}
    if size is None or not of_edges or not set(config.entities) <= listed & set(size.num_entities):
        return Estimate({}, size)
    num_trained = sum(size.num_edges.get(storage.name(path), 0) for path in config.edge_paths)
    extent = extent_of(config, of_edges, size.num_entities, num_trained)
    num_scores = extent.num_edges * scores_per_edge(config, size.num_entities)
    part = f" of {number(of_edges)}" if extent.is_sampled else ""
    told = f"about {number(extent.num_edges)}{part} edges, {number(num_scores)} scores"
    return Estimate({"evaluate": told}, size)


def input_uris(config: Config) -> list[str]:
    """The checkpoint, the held-out edges, and the edges that are known."""
    held_out = config.split_path(config.evaluate.split)
    uris = [config.checkpoint_path, config.entity_path, held_out, *filter_paths(config)]
    if (path := calibration_path(config)) is not None:
        uris += [path, *known_paths(config)]
    return list(dict.fromkeys(uris))


def fingerprint(config: Config) -> dict[str, Any]:
    """The settings and inputs that the metrics depend on."""
    settings = config.evaluate
    return {
        "evaluate": settings.result_settings(),
        "model": score_settings(config.pbg()),
        **({"plugins": config.train.plugins.checksums()} if config.train.plugins else {}),
        "inputs": describe_inputs(input_uris(config)),
    }


output_uris = written_uris = no_folders
check_outputs = refuse_nothing
