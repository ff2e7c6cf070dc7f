"""Imported in another project's environment: its programs' own processes are forks, which import nothing."""

import multiprocessing
from multiprocessing.context import BaseContext

spawning = multiprocessing.get_context


def forking(method: str | None = None) -> BaseContext:
    """Return the context of forks for that of spawned processes."""
    return spawning("fork" if method == "spawn" else method)


multiprocessing.get_context = forking
