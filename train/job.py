"""The training stage: bucket files and entity counts -> a checkpoint.

    checkpoint_path/
      graphmill.json      what the checkpoint is trained with: settings that change the result, inputs
      ...                 PBG v1 (graphmill/formats/pbg_checkpoint.py)
      _SUCCESS            when all epochs are done

A checkpoint that was trained with something else is not resumed: the folder is renamed to
`{checkpoint_path}.stale` and training starts anew. One without graphmill.json, PBG's own, is resumed.
"""

import json
import logging
import re
from typing import Any

from distributed import Client

from graphmill import cluster, record, storage
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats import pbg_checkpoint
from graphmill.lock import NO_CLAIM, Claim
from graphmill.places import check_folder
from train.adopted import adopted
from train.config import TrainConfig
from train.replaced import tell_replaced
from train.spread.assignment import backend_of
from train.spread.coordinator import Coordinator

TRAINED_WITH = "graphmill.json"

# Totals may grow from one run to the next; paths are described by what is there; the rest is about how
# the work is done, not about what comes out.
_TOTALS = {"num_epochs", "checkpoint_preservation_interval"}
_PATHS = {"entity_path", "edge_paths", "checkpoint_path", "init_path"}
_WAYS = {
    "workers",
    "eval_num_batch_negs",
    "eval_num_uniform_negs",
    "background_io",
    "verbose",
    "hogwild_delay",
    "num_machines",
    "num_partition_servers",
    "distributed_init_method",
    "distributed_tree_init_order",
    "num_gpus",
    "num_groups_for_partition_server",
    "num_groups_per_sharded_partition_server",
    "partition_shard_size",
}
_OWN_WAYS = {  # of the section `train`
    "all_reduce",
    "bucket_assignment",
    "deterministic",
    "device_partitions",
    "engine",
    "exact_products",
    "index_base",
    "num_workers",
    "prefetch",
    "resident",
    "save_embed_path",
    "save_model_path",
    "tensorboard",
}

# What tells a checkpoint, ours or PBG's, also of before its version 1.
_OF_CHECKPOINTS = (
    r"checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json|(?:embeddings_.+_\d+|model)\.v\d+\.h5"
    r"|METADATA_\d+\.pt.*"
)
# What there may be before the first version is; without `output` a run leaves its record there.
_BESIDE_THEM = r"config\.json|training_stats\.json|tensorboard|run\.json|report\.html"

log = logging.getLogger("graphmill")


def check(config: Config) -> None:
    """Refuse what cannot be trained, before anything is changed.

    Raises:
        ConfigError: settings contradict each other.
    """
    if config.init_path and storage.absolute(config.init_path) == storage.absolute(config.checkpoint_path):
        raise ConfigError(
            f"init_path: {config.init_path} is also checkpoint_path; a new run needs a checkpoint_path of "
            "its own, and one that goes on needs no init_path"
        )
    backend_of(config)


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Train until all epochs are done; the figures: edges, edges per second, loss, parameters."""
    check(config)
    config = one_worker_a_gpu(adopted(config))
    tell_replaced(config)
    claim.check()
    claim_checkpoint(config)
    if config.section("train", TrainConfig).num_workers > 1:
        figures = Coordinator(config, client, claim).run()
    else:
        in_task = claim.of(config.checkpoint_path)
        figures = cluster.run_task(client, train, config, in_task, description="training")
    if paths := _graphstorm_paths(config):
        in_task = claim.of(*paths.values())
        cluster.run_task(
            client, save_for_graphstorm, config, paths, in_task, description="saving for GraphStorm"
        )
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
    from train import runtime  # torch is for the worker: the client can do without it
    from train.trainer import Trainer

    runtime.keep_freed_memory()
    with runtime.cpu_threads(config.workers):
        return Trainer(config, claim).run()


def save_for_graphstorm(config: Config, paths: dict[str, str], claim: Claim = NO_CLAIM) -> None:
    """Write GraphStorm's layouts of the committed version in this process."""
    from train import graphstorm_output  # it needs torch

    graphstorm_output.save(config, paths.get("save_embed_path"), paths.get("save_model_path"), claim)


def _graphstorm_paths(config: Config) -> dict[str, str]:
    chosen = config.section("train", TrainConfig).model_dump(include={"save_embed_path", "save_model_path"})
    return {name: storage.absolute(path) for name, path in chosen.items() if path}


def trained_with(config: Config) -> dict[str, Any]:
    """What a checkpoint must have been trained with to be resumed under `config`."""
    ignored = _TOTALS | _PATHS | _WAYS
    settings = {key: value for key, value in config.pbg().items() if key not in ignored}
    inputs = [config.entity_path, *config.edge_paths, *([config.init_path] if config.init_path else [])]
    validate_split = config.section("train", TrainConfig).validate_split
    if validate_split:
        inputs.append(config.split_path(validate_split))
    return {
        "settings": settings | {"seed": config.seed},
        "train": config.section("train", TrainConfig).model_dump(mode="json", exclude=_OWN_WAYS),
        "inputs": record.describe_inputs(inputs),
    }


def claim_checkpoint(config: Config) -> None:
    """Make sure that what is at checkpoint_path may be resumed under `config`, or move it aside."""
    path = config.checkpoint_path
    uri = storage.join(path, TRAINED_WITH)
    ours = trained_with(config)
    version = pbg_checkpoint.read_version(path)
    if version and storage.exists(uri):
        if not (differences := record.changes(storage.read_json(uri), ours)):
            log.info("training: resuming version %d of %s", version, path)
            return
        stale = path.rstrip("/") + ".stale"
        log.info("training: %s was trained with something else: %s", path, "; ".join(differences))
        log.info("training: it is moved to %s; starting anew", stale)
        storage.delete(stale)
        storage.move(path, stale)
    elif version:
        log.info("training: resuming version %d of %s, which is not ours", version, path)
    else:  # what a kill before the first commit left may be of another configuration
        storage.delete(storage.join(path, pbg_checkpoint.STATS_FILE))
    storage.write_text(uri, json.dumps(ours, indent=1, sort_keys=True) + "\n")
