"""The exceptions that GraphMill raises, each with the exit code that it ends a command with.

A message names what was expected, what was found, the place, and the remedy.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

_ALIKE = 0.75  # of difflib: "version" and "dimension" have 0.625
_MAX_SHOWN = 20


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that somebody who wrote `word` may have meant, if there is one."""
    lower = {other.lower(): other for other in reversed(list(known))}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=_ALIKE)
    return lower[close[0]] if close else None


def suggestion(word: str, known: Iterable[str], others: str = "there are") -> str:
    """The end of a message about an unknown word: the one that was meant, or all that there are."""
    known = list(known)
    if close := closest(word, known):
        return f"did you mean {close!r}?"
    more = ", ..." if len(known) > _MAX_SHOWN else ""
    return f"{others} {', '.join(known[:_MAX_SHOWN]) or 'none'}{more}"


def optional(module: str, missing: str) -> Any:
    """Import a module of an optional package; a ConfigError says `missing` where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{missing} ({error})") from error


class GraphMillError(Exception):
    """Base of all errors that GraphMill raises on purpose; most are failures that the user did not cause."""

    exit_code = 1
    figures: Mapping[str, Any] = {}
    """Figures for run.json that a stage had found."""


class StorageError(GraphMillError):
    """A path cannot be read or written."""


class NotFoundError(StorageError):
    """A path that should exist does not."""

    exit_code = 2


class DiskFullError(StorageError):
    """A disk, a quota or a limit of file sizes leaves no room; a retry alone does not help."""


class AccessError(StorageError):
    """A permission on a file or a folder is missing; running it again will not help."""

    exit_code = 2


class PathError(StorageError):
    """An invalid path, or a file where a folder is expected, or a folder where a file is expected."""

    exit_code = 2


class ClusterError(GraphMillError):
    """The Dask cluster was lost, or a worker does not do what it should."""


class NoClusterError(ClusterError):
    """No cluster has started, or none answers; nothing was changed, and trying again later may help."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h


class ShortageError(GraphMillError):
    """Memory, address space or threads of a machine do not suffice."""


class LockedError(GraphMillError):
    """Another run uses the same output, or has taken it over."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class TrainingError(GraphMillError):
    """Training cannot go on."""


class DivergenceError(TrainingError):
    """A loss or a row that is not finite: the settings are wrong, and running it again will not help."""

    exit_code = 2


class DriftError(GraphMillError):
    """Vectors have moved farther than `drift.max_p10` since the run before; `figures` tell how far."""

    exit_code = 3

    def __init__(self, message: str, figures: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.figures = figures


class BadInputError(GraphMillError):
    """The input is wrong; running it again will not help."""

    exit_code = 2


class ConfigError(BadInputError):
    """The configuration is wrong; the message starts with the key's path."""


class RawTableError(BadInputError):
    """A raw table lacks a column, or holds a row that cannot become an edge."""


class FormatError(BadInputError):
    """A file does not follow its format page."""
