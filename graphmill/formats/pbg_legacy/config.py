"""The legacy configuration: PBG's keys in camelCase, two of them under other names."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_RENAMED = {"checkpoint_path": "outdir", "init_path": "loadPath"}
_RENAMED_BACK = {legacy: key for key, legacy in _RENAMED.items()}


def to_legacy(config: Mapping[str, Any]) -> dict[str, Any]:
    """PBG v1's configuration with the legacy keys."""
    return _renamed(config, lambda key: _RENAMED.get(key) or _camel(key))


def from_legacy(config: Mapping[str, Any]) -> dict[str, Any]:
    """A legacy configuration with PBG v1's keys."""
    return _renamed(config, lambda key: _RENAMED_BACK.get(key) or _snake(key))


def _renamed(config: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    renamed = {rename(key): value for key, value in config.items()}
    entities, relations = renamed.get("entities"), renamed.get("relations")
    if isinstance(entities, Mapping):  # the keys are names of types
        renamed["entities"] = {name: _inner(each, rename) for name, each in entities.items()}
    if isinstance(relations, list | tuple):
        renamed["relations"] = [_inner(each, rename) for each in relations]
    return renamed


def _inner(section: Any, rename: Callable[[str], str]) -> Any:
    return {rename(key): value for key, value in section.items()} if isinstance(section, Mapping) else section


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), key)


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), key)
