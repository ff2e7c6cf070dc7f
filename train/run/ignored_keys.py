"""PBG's keys without effect here, and values without sense: training accepts them, and says so once."""

import logging

from graphmill.config import PbgConfig

_FILES = "partitions are files of the checkpoint, which the workers read and write themselves"
REPLACED = {
    "num_machines": "train.num_workers sets how many Dask workers share the buckets",
    "num_partition_servers": _FILES,
    "num_groups_for_partition_server": _FILES,
    "num_groups_per_sharded_partition_server": _FILES,
    "partition_shard_size": _FILES,
    "distributed_init_method": "the Dask cluster connects the workers: --master, or the section `cluster`",
    "distributed_tree_init_order": "several workers start from one bucket in any case",
    "hogwild_delay": "threads start together, and share the sums of Adagrad from the first batch on",
    "background_io": "train.prefetch, which is on by default where it takes no memory from partitions",
    "verbose": "--debug shows all messages",
}

log = logging.getLogger("graphmill")


def log_ignored_keys(config: PbgConfig) -> None:
    """Log the keys without effect that differ from their default."""
    for key, instead in REPLACED.items():
        value = getattr(config, key)
        if value != type(config).model_fields[key].default:
            log.info("training: %s: %s has no effect: %s", key, value, instead)
    if config.loss_fn == "logistic" and config.comparator == "cos":
        log.warning("training: logistic learns little with comparator cos, whose scores lie in [-1, 1]")
    if config.num_epochs == 0:
        log.warning("training: num_epochs: 0 trains nothing: the stages that need a checkpoint will stop")
