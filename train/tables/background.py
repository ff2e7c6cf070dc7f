"""Reading ahead and writing behind: one thread, which does what it is asked to in that order.

The order is what makes it safe: a file is written before anybody asks the thread to read it, and what
leaves the memory has left it before the next thing comes in.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Background:
    """One thread beside the one that trains, or with `threaded` False none: everything is done when asked.

    Attributes:
        wait_s: seconds that the caller has waited for it.
    """

    def __init__(self, *, threaded: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "swap") if threaded else None
        self.wait_s = 0.0

    def submit(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> "Future[Result]":
        """Have it done after all that was asked for before."""
        if self._thread is not None:
            return self._thread.submit(function, *args, **kwargs)
        done: Future[Result] = Future()
        start = time.monotonic()
        done.set_result(function(*args, **kwargs))
        self.wait_s += time.monotonic() - start
        return done

    def result(self, future: "Future[Result]") -> Result:
        """Wait for what was asked; raises what it raised."""
        start = time.monotonic()
        try:
            return future.result()
        finally:
            self.wait_s += time.monotonic() - start

    def close(self) -> None:
        """Drop what has not begun, and wait for what has."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
