"""The training stage: bucket files and entity counts -> a checkpoint.

checkpoint_path/
  graphmill.json      what the checkpoint is trained with (train/claim.py)
  ...                 PBG v1 (graphmill/formats/pbg_checkpoint.py)
  _SUCCESS            when all epochs are done
"""

import logging
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from train.adopted import adopted
from train.claim import check, claim_checkpoint, moved_aside, trained_with
from train.config import TrainConfig
from train.replaced import tell_replaced
from train.spread.coordinator import Coordinator

__all__ = ["check", "claim_checkpoint", "fingerprint", "output_uris", "run", "save_for_graphstorm", "train"]

log = logging.getLogger("graphmill")


def run(config: Config, client: Client) -> dict[str, Any]:
    """Train until all epochs are done; the figures: edges, edges per second, loss, parameters."""
    config = one_worker_a_gpu(adopted(config))
    tell_replaced(config)
    changes = claim_checkpoint(config)
    if config.section("train", TrainConfig).num_workers > 1:
        figures = Coordinator(config, client).run()
    else:
        figures = cluster.run_task(client, train, config, description="training")
    if changes and not figures["num_edges"]:
        log.warning("training: nothing was left to train: raise num_epochs, the total, to go on")
    if aside := moved_aside(config.checkpoint_path):
        figures |= {"moved_aside": aside}  # only the user deletes these
    if paths := _graphstorm_paths(config):
        cluster.run_task(client, save_for_graphstorm, config, paths, description="saving for GraphStorm")
    return figures


def one_worker_a_gpu(config: Config) -> Config:
    """With several GPUs, and nothing said of workers, as many of these."""
    if config.num_gpus > 1 and "num_workers" not in config.train:
        return config.model_copy(update={"train": config.train | {"num_workers": config.num_gpus}})
    return config


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the checkpoint depends on."""
    saved = {"saved_for_graphstorm": paths} if (paths := _graphstorm_paths(config)) else {}
    return trained_with(config) | {"num_epochs": config.num_epochs} | saved


def output_uris(config: Config) -> list[str]:
    """The checkpoint."""
    return [config.checkpoint_path]


def train(config: Config) -> dict[str, Any]:
    """Train in this process, from where the checkpoint ends; safe to run again after a kill."""
    from train import runtime  # torch is for the worker: the client can do without it
    from train.trainer import Trainer

    runtime.keep_freed_memory()
    with runtime.cpu_threads(config.workers):
        return Trainer(config).run()


def save_for_graphstorm(config: Config, paths: dict[str, str]) -> None:
    """Write GraphStorm's layouts of the committed version in this process."""
    from train import graphstorm_output  # it needs torch

    graphstorm_output.save(config, paths.get("save_embed_path"), paths.get("save_model_path"))


def _graphstorm_paths(config: Config) -> dict[str, str]:
    chosen = config.section("train", TrainConfig).model_dump(include={"save_embed_path", "save_model_path"})
    return {name: storage.absolute(path) for name, path in chosen.items() if path}
