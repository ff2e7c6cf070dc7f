"""The training stage: bucket files and entity counts -> a checkpoint.

checkpoint_path/
  graphmill.json      what the checkpoint is trained with (train/run/claim.py)
  ...                 PBG v1 (graphmill/formats/pbg_checkpoint.py)
  _SUCCESS            when all epochs are done
"""

import logging
import re
from collections.abc import Collection
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.places import check_folder
from train.config import TrainConfig
from train.distributed.bucket_assignment import backend_of
from train.distributed.coordinator import Coordinator
from train.run.claim import check_claim, claim_checkpoint, moved_aside, trained_with
from train.run.ignored_keys import tell_replaced
from train.tables.legacy_inputs import import_legacy_inputs

__all__ = [
    "check",
    "check_outputs",
    "claim_checkpoint",
    "fingerprint",
    "output_uris",
    "run",
    "save_for_graphstorm",
    "train",
    "written_uris",
]

# What tells a checkpoint, ours or PBG's, also of before its version 1.
_OF_CHECKPOINTS = (
    r"checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json|(?:embeddings_.+_\d+|model)\.v\d+\.h5"
    r"|METADATA_\d+\.pt.*"
)
# What there may be before the first version is; without `output` a run leaves its record there.
_BESIDE_THEM = r"config\.json|training_stats\.json|tensorboard|run\.json|report\.html"

log = logging.getLogger("graphmill")


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Refuse what cannot be trained, before anything is changed; the folders `coming` are yet to be written.

    Raises:
        ConfigError: settings contradict each other; or the checkpoint may not be resumed, and
            `train.on_change` says not to start anew; or there is nothing to validate on.
    """
    if config.init_path and storage.absolute(config.init_path) == storage.absolute(config.checkpoint_path):
        raise ConfigError(
            f"init_path: {config.init_path} is also checkpoint_path; a new run needs a checkpoint_path of "
            "its own, and one that goes on needs no init_path"
        )
    backend_of(config)
    check_claim(config, coming)
    return ""


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Train until all epochs are done; the figures: edges, edges per second, loss, parameters."""
    check(config)
    config = one_worker_a_gpu(import_legacy_inputs(config))
    tell_replaced(config)
    claim.check()
    changes = claim_checkpoint(config)
    if config.section(TrainConfig).num_workers > 1:
        figures = Coordinator(config, client, claim).run()
    else:
        in_task = claim.of(config.checkpoint_path)
        figures = cluster.run_task(client, train, config, in_task, description="training")
    if changes and not figures["num_edges"]:
        log.warning("training: nothing was left to train: raise num_epochs, the total, to go on")
    if aside := moved_aside(config.checkpoint_path):
        figures |= {"moved_aside": aside}  # only the user deletes these
    if paths := _graphstorm_paths(config):
        in_task = claim.of(*paths.values())
        cluster.run_task(
            client, save_for_graphstorm, config, paths, in_task, description="saving for GraphStorm"
        )
    return figures


def one_worker_a_gpu(config: Config) -> Config:
    """With several GPUs, and nothing said of workers, as many of these."""
    settings = config.section(TrainConfig)
    if config.num_gpus > 1 and "num_workers" not in settings.model_fields_set:
        return config.with_section(settings.model_copy(update={"num_workers": config.num_gpus}))
    return config


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the checkpoint depends on."""
    saved = {"saved_for_graphstorm": paths} if (paths := _graphstorm_paths(config)) else {}
    return trained_with(config) | {"num_epochs": config.num_epochs} | saved


def output_uris(config: Config) -> list[str]:
    """The checkpoint."""
    return [config.checkpoint_path]


def written_uris(config: Config) -> list[str]:
    """The checkpoint, and what GraphStorm is to read."""
    return [config.checkpoint_path, *_graphstorm_paths(config).values()]


def check_outputs(config: Config) -> None:
    """Refuse a folder of others for the checkpoint; one of PBG's, of any version, is gone on from.

    Raises:
        ConfigError: the folder holds files, and no checkpoint.
    """
    names = {storage.name(entry.uri) for entry in storage.list_dir(config.checkpoint_path)}
    if not any(map(re.compile(_OF_CHECKPOINTS).fullmatch, names)):
        check_folder(config.checkpoint_path, _BESIDE_THEM, "checkpoint_path", "and no checkpoint")


def train(config: Config, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Train in this process, from where the checkpoint ends; safe to run again after a kill."""
    from train.run.trainer import Trainer
    from train.step import runtime  # torch is for the worker: the client can do without it

    runtime.keep_freed_memory()
    with runtime.cpu_threads(config.workers):
        return Trainer(config, claim).run()


def save_for_graphstorm(config: Config, paths: dict[str, str], claim: Claim = NO_CLAIM) -> None:
    """Write GraphStorm's layouts of the committed version in this process."""
    from train.run import graphstorm_output  # it needs torch

    graphstorm_output.save(config, paths.get("save_embed_path"), paths.get("save_model_path"), claim)


def _graphstorm_paths(config: Config) -> dict[str, str]:
    chosen = config.section(TrainConfig).model_dump(include={"save_embed_path", "save_model_path"})
    return {name: storage.absolute(path) for name, path in chosen.items() if path}
