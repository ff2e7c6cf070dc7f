"""Imports of optional packages."""

from importlib import import_module
from typing import Any

from graphmill.errors import RawTableError


def imported(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package."""
    try:
        return import_module(module)
    except ImportError as error:
        raise RawTableError(
            f"{what} is read with the package {module.partition('.')[0]}, which cannot be imported "
            f"({error}); install it: pip install 'graphmill[{extra}]'"
        ) from error
