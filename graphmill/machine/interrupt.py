"""Errors that other threads raise in the main thread, such as a lost lock or a lost cluster."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from graphmill.errors import GraphMillError

_pending: list[GraphMillError] = []


@contextmanager
def interruptible() -> Iterator[Callable[[GraphMillError], None]]:
    """Yield a function that raises its error in this block; any thread may call the function.

    The function sends a signal: only a signal interrupts a main thread that waits for a Dask future. Python
    handles signals in the main thread. In another thread the function does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda error: None
        return
    before = signal.signal(signal.SIGUSR1, _raise_pending)
    try:
        yield _interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)


def _interrupt(error: GraphMillError) -> None:
    _pending.append(error)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _raise_pending(number: int, frame: FrameType | None) -> None:
    if _pending:
        raise _pending.pop(0)
