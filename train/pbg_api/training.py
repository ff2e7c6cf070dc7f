"""PBG's training, and its helpers for programs.

Rank 0 trains, the other ranks return, partition servers wait for the end. Helpers load configurations from
files with `-p`, show log lines, and collect functions for processes.
"""

import logging
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from graphmill import config as configuration
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.display import terminal
from graphmill.errors import ConfigError, NotFoundError
from graphmill.run import lock
from train import job
from train.job import log_ignored_keys
from train.pbg_api.schema import ConfigSchema, settings_of
from train.run.claim import claimed, end_training

_POLL_S = 1.0
_GRACE_S = 3.0  # programs that start servers and trainers see the trainers end first
_LEVELS = {0: logging.INFO, 1: logging.DEBUG}

log = logging.getLogger("graphmill")

# The texts of `-p`, maybe as lists of several each, as argparse collects them.
Overrides = Iterable[str | Iterable[str]] | None


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
    call_one_after_the_other(subprocess_init)
    settings = settings_of(config)
    job.check(settings)
    log_ignored_keys(settings)
    with lock.held(whole=[settings.checkpoint_path]) as claim:
        storage.delete_marker(settings.checkpoint_path)
        with claimed(settings, claim):
            job.train(settings, claim)
        end_training(settings.checkpoint_path)


def run_partition_server(
    config: Any, rank: int = 0, subprocess_init: Callable[[], None] | None = None
) -> None:
    """Wait until training has ended: partitions are files of the checkpoint, so there is nothing to serve.

    Raises:
        ConfigError: a value does not fit.
    """
    call_one_after_the_other(subprocess_init)
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
    version = pbg.read_version(config.checkpoint_path)
    try:
        ended = pbg.read_model_iteration(config.checkpoint_path, version) if version else None
    except NotFoundError:  # a new version has come meanwhile
        return False
    if ended is None:
        return not config.num_epochs
    index, per_epoch = ended.in_epoch
    return ended.epoch_idx + 1 >= config.num_epochs and index + 1 == per_epoch


class ConfigFileLoader:
    """Loads a configuration in Python.

    Attributes:
        config_dir: temporary folder, for PBG's programs that add `config_dir.name` to sys.path; always empty,
            as nothing is sent to other processes.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="pbg_config_")
        self.config_dir = SimpleNamespace(name=folder)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def load_raw_config(self, path: str, overrides: Overrides = None) -> dict[str, Any]:
        """Read the file at `path` as a mapping, unchecked.

        Raises:
            ConfigError: the file cannot be run, or `-p` names no key of PBG.
        """
        raw = configuration.read_raw(str(path), _flat(overrides))
        by_loader = {"on_change": "resume", "plugins": [str(path)]}  # which this process has already
        if any(by_loader.get(key) != value for key, value in raw.pop("train", {}).items()):
            raise ConfigError(f"{path}: train: only graphmill's commands take this section; leave it out")
        return raw

    def load_config(self, path: str, overrides: Overrides = None) -> Any:
        """Read the file at `path` as a ConfigSchema.

        Raises:
            ConfigError: as `load_raw_config`; or a key is unknown or missing, or a value does not fit.
        """
        return parse_config(self.load_raw_config(path, overrides))


def parse_config(config_dict: Mapping[str, Any]) -> Any:
    """Make a ConfigSchema of a mapping; raises as `ConfigSchema.from_dict`."""
    return ConfigSchema.from_dict(config_dict)


def override_config_dict(config_dict: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Set keys of a mapping in place, as `-p` does.

    Raises:
        ConfigError: an override names no key of PBG, or a place that the mapping does not have.
    """
    for override in _flat(overrides):
        configuration.apply_override(config_dict, override)
    return config_dict


def add_to_sys_path(path: str) -> None:
    """Add a folder to those that modules are imported from."""
    sys.path.append(path)


def setup_logging(verbosity_level: int = 0) -> None:
    """Show log lines on standard error."""
    terminal.start_logging()
    set_logging_verbosity(verbosity_level)


def set_logging_verbosity(verbosity_level: int) -> None:
    """Choose what is logged: 0, or with 1 messages for developers too."""
    if verbosity_level not in _LEVELS:
        raise ValueError(f"verbosity: expected 0 or 1, found {verbosity_level}")
    log.setLevel(_LEVELS[verbosity_level])


class SubprocessInitializer:
    """Functions to call at the start of a process that trains or evaluates."""

    def __init__(self) -> None:
        self.initializers: list[Callable[[], None]] = []

    def register(self, init_function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Add a function with its arguments."""
        if not callable(init_function):
            raise ValueError(f"init_function: expected a function, found {init_function!r}")
        self.initializers.append(partial(init_function, *args, **kwargs))

    def __call__(self) -> None:
        """Call all functions in order."""
        call_one_after_the_other(*self.initializers)


def call_one_after_the_other(*funcs: Callable[[], None] | None) -> None:
    """Call the functions in order; None stands for none."""
    for func in funcs:
        if func is not None:
            func()


def _flat(overrides: Overrides) -> list[str]:
    texts = [[given] if isinstance(given, str) else list(given) for given in overrides or ()]
    return [configuration.as_override(text) for several in texts for text in several]
