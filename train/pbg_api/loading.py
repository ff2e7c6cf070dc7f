"""PBG's helpers for programs: configurations from files with `-p`, log lines, functions for processes."""

import logging
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from graphmill import config
from graphmill.display import terminal
from graphmill.errors import ConfigError
from train.pbg_api.schema import ConfigSchema

_LEVELS = {0: logging.INFO, 1: logging.DEBUG}

log = logging.getLogger("graphmill")

# The texts of `-p`, maybe as lists of several each, as argparse collects them.
Overrides = Iterable[str | Iterable[str]] | None


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
        raw = config.read_raw(str(path), _flat(overrides))
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
        config.apply_override(config_dict, override)
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
    return [config.as_override(text) for several in texts for text in several]
