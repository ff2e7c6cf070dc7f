"""Settings of HADOOP_CONF_DIR that hdfs-native does not read, or for which it has another default.

hdfs-native reads no settings of new files: it takes the namenode's defaults.
"""

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from graphmill.errors import ConfigError

VARIABLE = "HADOOP_CONF_DIR"

# If datanodes of a block fail and no others can replace them, go on with the remaining datanodes: the
# namenode makes the missing copies later. A small cluster has no spare datanodes.
_CLIENT_DEFAULTS = {"dfs.client.block.write.replace-datanode-on-failure.best-effort": "true"}

_FILES = ("core-site.xml", "hdfs-site.xml")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DEFAULT_UMASK = "022"


class NewFiles(NamedTuple):
    """Settings of new files and folders; None stands for the namenode's default."""

    replication: int | None
    block_size_bytes: int | None
    umask: int


def settings() -> Mapping[str, str]:
    """The configuration of this process, by key."""
    return _settings(os.environ.get(VARIABLE) or "")


def client_defaults() -> dict[str, str]:
    """Our client settings that the configuration of this process does not set."""
    return {key: value for key, value in _CLIENT_DEFAULTS.items() if key not in settings()}


def new_files() -> NewFiles:
    """`dfs.replication`, `dfs.blocksize` and `fs.permissions.umask-mode` of this process's configuration."""
    replication, block_size = map(settings().get, ("dfs.replication", "dfs.blocksize"))
    try:
        return NewFiles(
            int(replication) if replication else None,
            _size_bytes(block_size) if block_size else None,
            parse_umask(settings().get("fs.permissions.umask-mode", _DEFAULT_UMASK)),
        )
    except ValueError as error:
        raise ConfigError(f"{os.environ[VARIABLE]}: {error}") from error


@lru_cache(maxsize=8)
def _settings(conf_dir: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path in (Path(conf_dir, name) for name in _FILES if conf_dir):
        if path.is_file():
            try:
                properties = ET.parse(path).getroot().iter("property")
            except ET.ParseError as error:
                raise ConfigError(f"{path}: expected Hadoop's XML: {error}") from error
            for property_ in properties:
                settings[(property_.findtext("name") or "").strip()] = (
                    property_.findtext("value") or ""
                ).strip()
    return settings


def _size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt]?)", text.lower())
    if match is None:
        raise ValueError(f"dfs.blocksize: expected bytes or a number with k, m, g or t, found {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_umask(text: str) -> int:
    """Parse `022` or `u=rwx,g=rx,o=`."""
    if re.fullmatch(r"[0-7]{1,4}", text):
        return int(text, 8) & 0o777
    allowed = 0
    for part in text.split(","):  # u=rwx,g=rx,o=
        match = re.fullmatch(r"([ugoa]+)=([rwx]*)", part.strip())
        if match is None:
            raise ValueError(
                f"fs.permissions.umask-mode: expected octal digits or u=rwx,g=rx,o=, found {text!r}"
            )
        bits = sum({"r": 4, "w": 2, "x": 1}[letter] for letter in set(match[2]))
        for who, shift in (("u", 6), ("g", 3), ("o", 0)):
            if who in match[1] or "a" in match[1]:
                allowed |= bits << shift
    return 0o777 & ~allowed
