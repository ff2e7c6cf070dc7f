"""One trial: a short training on the tuner's graph, ranked on its validation edges; a task of its own."""

import json
import time
from typing import Any

from graphmill import storage
from graphmill.ask.evaluate import evaluate
from graphmill.ask.evaluate.extent import training_scores
from graphmill.config import Config, apply_override, from_mapping
from graphmill.errors import TrainingError
from graphmill.vocab import TRAIN_SPLIT
from train import job
from train.tune.halving import Changes, Trial
from train.tune.sample import VALID_SPLIT

# Of the section `train`: what a short run on another graph does without.
_LEFT_OUT = (
    "validate_split",
    "freeze",
    "init_embeddings",
    "num_workers",
    "tensorboard",
    "save_embed_path",
    "save_model_path",
    "memory_partitions",
)


def trial_config(config: Config, graph: str, folder: str, workers: int) -> Config:
    """Turn a configuration into that of trials: on the tuner's graph, below a folder, on some threads."""
    content = config.model_dump(mode="json")
    for section in ("etl", "remap", "cluster", "schedule"):
        del content[section]
    for entity in content["entities"].values():
        entity["num_partitions"] = 1
    edges = storage.join(graph, "edges")
    train = config.train.model_dump(mode="json", exclude_unset=True, exclude=set(_LEFT_OUT))
    return from_mapping(
        content
        | {
            "output": folder,
            "entity_path": storage.join(graph, "entities"),
            "edge_root": edges,
            "edge_paths": [storage.join(edges, TRAIN_SPLIT)],
            "checkpoint_path": storage.join(folder, "checkpoint"),
            "embedding_path": storage.join(folder, "embeddings"),
            "init_path": None,
            "checkpoint_preservation_interval": None,
            "num_edge_chunks": None,
            "eval_fraction": 0.0,
            "workers": workers,
            "train": train,
            "evaluate": {"split": VALID_SPLIT, "budget": "unlimited"},
        }
    )


def changed(config: Config, changes: Changes, **others: Any) -> Config:
    """Apply the changes of a candidate."""
    content: dict[str, Any] = config.model_dump(mode="json")
    for path, value in changes.items():
        apply_override(content, f"{path}={json.dumps(value)}")
    return from_mapping(content | others)


def work(config: Config, changes: Changes, num_entities: dict[str, int], num_edges: int) -> float:
    """Estimate the multiplications of an epoch of a candidate."""
    chosen = changed(config, changes, num_epochs=1)
    return training_scores(chosen, num_entities, num_edges) * chosen.dimension


def run_trial(config: Config, changes: dict[str, Any], rung: int, epochs: int, folder: str) -> Trial:
    """Train and rank a candidate; a loss that is not finite counts as the worst result."""
    import train.run.trainer  # noqa: F401 (imports torch: seconds that are no part of the first trial)

    start = time.monotonic()
    chosen = changed(
        config, changes, num_epochs=epochs, output=folder, checkpoint_path=storage.join(folder, "checkpoint")
    )
    storage.delete(folder)  # of a task that was lost
    try:
        job.train(chosen)
        mrr = float(evaluate.evaluate(chosen)["metrics"]["mrr"])
    except TrainingError:
        mrr = 0.0
    storage.delete(folder)
    return Trial(changes, rung, epochs, time.monotonic() - start, mrr)
