"""Settings of a run.json that run code or reach other machines: a run may come from anybody.

They count only where the user of a command names them again: by an option, or in a configuration of their
own. All other settings of the run count as they are.
"""

import logging
import shlex
from collections.abc import Mapping
from typing import Any

from graphmill.config.sections import SECTIONS
from graphmill.config.yaml_text import as_yaml, shown
from graphmill.errors import ConfigError

_PLUGINS, _MASTER = "train.plugins", "cluster.master"

log = logging.getLogger("graphmill")


def take_out(raw: dict[str, Any]) -> dict[str, Any]:
    """Take the settings that need consent out of those of a run.json, and return them by their keys."""
    taken = {}
    for name, model in SECTIONS.items():
        section = raw.get(name)
        if not isinstance(section, dict):
            continue
        for key in [key for key, value in section.items() if model.needs_consent(key, value)]:
            taken[f"{name}.{key}"] = section.pop(key)
    return taken


def unnamed(taken: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings that need consent and that the user has not given again in `raw`."""
    sections = ((name, section) for name, section in raw.items() if isinstance(section, Mapping))
    given = {f"{name}.{key}" for name, section in sections for key in section}
    return {key: value for key, value in taken.items() if key not in given}


def check_plugins(missing: Mapping[str, Any], record_uri: str) -> None:
    """Raise ConfigError for plug-ins of a run.json that the user has not named."""
    if _PLUGINS in missing:
        raise ConfigError(
            f"{_PLUGINS}: {record_uri} names {shown(missing[_PLUGINS])}. A run may come from anybody, so its "
            f"plug-ins run only if you name them: {_option(_PLUGINS, missing[_PLUGINS])}, or plugins=[...] "
            "of graphmill.open()"
        )


def check_cluster(missing: Mapping[str, Any], record_uri: str | None, master: str | None) -> None:
    """Tell which settings of a run.json's cluster do not count; `master`: that of the user."""
    options = " ".join(_option(key, value) for key, value in missing.items() if key.startswith("cluster."))
    if _MASTER in missing and master is None:
        raise ConfigError(
            f"{_MASTER}: {record_uri} names {shown(missing[_MASTER])}. A run may come from anybody, so its "
            f"cluster is used only if you name it: {options}; or work here: --master local"
        )
    if options:
        log.warning("cluster: %s: it does not count here unless you name it: %s", record_uri, options)


def _option(key: str, value: Any) -> str:
    return f"--set {shlex.quote(f'{key}={as_yaml(value)}')}"
