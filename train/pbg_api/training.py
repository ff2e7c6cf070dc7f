"""PBG's training: rank 0 trains, the other ranks return, partition servers wait for the end."""

import logging
import time
from collections.abc import Callable
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import ConfigError, NotFoundError
from graphmill.run import lock
from train import job
from train.pbg_api.schema import settings_of
from train.run.claim import claim_checkpoint, end_training
from train.run.ignored_keys import log_ignored_keys

_POLL_S = 1.0
_GRACE_S = 3.0  # programs that start servers and trainers see the trainers end first

log = logging.getLogger("graphmill")


def train(
    config: Any,
    model: None = None,
    trainer: None = None,
    evaluator: None = None,
    rank: int = 0,
    subprocess_init: Callable[[], None] | None = None,
) -> None:
    """Train until num_epochs are done, from the checkpoint at checkpoint_path on.

    Args:
        config: A ConfigSchema of ours or of PBG, or its to_dict().
        model: None: the configuration makes the model.
        trainer: None, as models and evaluators of training: plug-ins change operators, losses and the like.
        evaluator: None; `do_eval` takes one.
        rank: Rank 0 trains; other ranks have nothing to do.
        subprocess_init: A function to call first.

    Raises:
        ConfigError: a value does not fit, or the checkpoint is of another model or graph.
        LockedError: another run trains this checkpoint.
    """
    for name, given in (("model", model), ("trainer", trainer), ("evaluator", evaluator)):
        if given is not None:
            raise ConfigError(
                f"train: {name}: expected None, found {type(given).__name__}: training makes its own of the "
                "configuration; register operators, comparators and losses as plug-ins instead"
            )
    if rank:
        log.info("training: rank %d has nothing to do: rank 0 trains, or Dask's workers do", rank)
        return
    if subprocess_init is not None:
        subprocess_init()
    settings = settings_of(config)
    job.check(settings)
    log_ignored_keys(settings)
    with lock.held(whole=[settings.checkpoint_path]) as claim:
        storage.delete_marker(settings.checkpoint_path)
        claim_checkpoint(settings)
        job.train(settings, claim)
        end_training(settings.checkpoint_path)


def run_partition_server(
    config: Any, rank: int = 0, subprocess_init: Callable[[], None] | None = None
) -> None:
    """Wait until training has ended: partitions are files of the checkpoint, so there is nothing to serve.

    Raises:
        ConfigError: a value does not fit.
    """
    if subprocess_init is not None:
        subprocess_init()
    settings = settings_of(config)
    log.info("training: there is nothing to serve: partitions are files of %s", settings.checkpoint_path)
    has_begun = False
    while True:
        is_training = lock.holder(settings.checkpoint_path, whole=True) is not None
        if not is_training and (has_begun or _is_trained(settings)):
            break
        has_begun = has_begun or is_training
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)


def _is_trained(config: Config) -> bool:
    path = config.checkpoint_path
    version = pbg.read_version(path)
    try:
        ended = pbg.read_model_iteration(path, version) if version else None
    except NotFoundError:  # a new version has come meanwhile
        return False
    if ended is None:
        return not config.num_epochs
    index, per_epoch = ended.in_epoch
    return ended.epoch_idx + 1 >= config.num_epochs and index + 1 == per_epoch
