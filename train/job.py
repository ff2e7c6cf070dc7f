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
from typing import Any

from distributed import Client

from graphmill import cluster, record, storage
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import pbg_checkpoint
from train.config import TrainConfig

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

log = logging.getLogger("graphmill")


def run(config: Config, client: Client) -> dict[str, Any]:
    """Train until all epochs are done; the figures: edges, edges per second, loss, parameters."""
    claim_checkpoint(config)
    return cluster.run_task(client, train, config, description="training")


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the checkpoint depends on."""
    return trained_with(config) | {"num_epochs": config.num_epochs}


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


def trained_with(config: Config) -> dict[str, Any]:
    """What a checkpoint must have been trained with to be resumed under `config`."""
    ignored = _TOTALS | _PATHS | _WAYS
    settings = {key: value for key, value in config.pbg().items() if key not in ignored}
    inputs = [config.entity_path, *config.edge_paths, *([config.init_path] if config.init_path else [])]
    return {
        "settings": settings | {"seed": config.seed},
        "train": config.section("train", TrainConfig).model_dump(mode="json"),
        "inputs": record.describe_inputs(inputs),
    }


def claim_checkpoint(config: Config) -> None:
    """Make sure that what is at checkpoint_path may be resumed under `config`, or move it aside."""
    path = config.checkpoint_path
    if config.init_path and storage.absolute(config.init_path) == storage.absolute(path):
        raise ConfigError(
            f"init_path: {path} is also checkpoint_path; a new run needs a checkpoint_path of its own, "
            "and one that goes on needs no init_path"
        )
    uri = storage.join(path, TRAINED_WITH)
    ours = trained_with(config)
    version = pbg_checkpoint.read_version(path)
    if version and storage.exists(uri):
        if not (differences := record.changes(_read(uri), ours)):
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


def _read(uri: str) -> Any:
    try:
        return json.loads(storage.read_text(uri))
    except json.JSONDecodeError as error:
        raise FormatError(f"{uri}: expected JSON, found something else: {error}") from error
