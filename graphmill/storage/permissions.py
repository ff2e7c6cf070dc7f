"""Says which permission on a local file or folder is missing."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from graphmill.storage.uri import local_path

_CHANGES = ("create", "delete", "make", "rename", "write", "sync", "set")


def missing(action: str, uri: str) -> str:
    """Say which permission on which file or folder is missing for an action on a local path."""
    path = Path(local_path(uri) or "/")
    above = [*reversed(path.parents)]
    closed = [each for each in above if each.is_dir() and not _may(each, os.X_OK)][:1]
    if closed:
        return f"{uri}: cannot {action}: no permission to enter the folder {_described(closed[0])}"
    folder = next(each for each in reversed(above) if each.is_dir())
    if not _may(folder, os.W_OK) and action.startswith(_CHANGES):
        return f"{folder}: no permission to write into the folder {_described(folder)}"
    return f"{uri}: cannot {action}: no permission to do that with {_described(path)}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _described(path: Path) -> str:
    """A path with its owner and mode, as `ls -l` shows them."""
    with suppress(OSError, KeyError):
        return f"{path} ({stat.filemode(path.stat().st_mode)}, of {path.owner()})"
    return str(path)
