"""Errors that other threads raise in the main thread, such as a lost lock or cluster; a Ctrl-C that waits."""

import multiprocessing.resource_tracker
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from graphmill.errors import GraphMillError

_OF_USERS = (signal.SIGINT, signal.SIGTERM)

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


@contextmanager
def deferred() -> Iterator[None]:
    """Heed Ctrl-C and SIGTERM at the end of the block; processes of threads that start in it get no Ctrl-C.

    A terminal sends Ctrl-C to all processes of a command; the first of them ends the others in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # which lets Ctrl-C through to the thread that calls it
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _OF_USERS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for caught in came:
            signal.raise_signal(caught)


def _interrupt(error: GraphMillError) -> None:
    _pending.append(error)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _raise_pending(number: int, frame: FrameType | None) -> None:
    if _pending:
        raise _pending.pop(0)
