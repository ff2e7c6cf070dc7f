"""How a thread that watches ends what the main thread is doing: a lost lock, a cluster that is gone."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from graphmill.errors import GraphMillError

_pending: list[GraphMillError] = []


@contextmanager
def alarm() -> Iterator[Callable[[GraphMillError], None]]:
    """Yields a function that any thread may call: its error is then raised in this block.

    By a signal, since a main thread that waits for a Dask future notices nothing else. Only for the main
    thread, to which Python brings signals.
    """
    before = signal.signal(signal.SIGUSR1, _raise_pending)
    try:
        yield _ring
    finally:
        signal.signal(signal.SIGUSR1, before)


def _ring(error: GraphMillError) -> None:
    _pending.append(error)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _raise_pending(number: int, frame: FrameType | None) -> None:
    if _pending:
        raise _pending.pop(0)


def on_main_thread() -> bool:
    """Whether an alarm can be set here."""
    return threading.current_thread() is threading.main_thread() and os.name == "posix"
