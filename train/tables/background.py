"""Reading ahead and writing behind: a thread that runs its tasks in the order of their submission.

The order makes this safe: a file is written before the thread reads it again, and a partition has left the
memory before the next one is read.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Background:
    """One thread beside the training thread."""

    def __init__(self, name: str = "swap") -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self.wait_s = 0.0  # that the caller has waited for tasks

    def submit(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> "Future[Result]":
        """Run a function after all that were submitted before."""
        return self._thread.submit(function, *args, **kwargs)

    def result(self, future: "Future[Result]") -> Result:
        """Wait for a task; raises its error."""
        start = time.monotonic()
        try:
            return future.result()
        finally:
            self.wait_s += time.monotonic() - start

    def close(self, *, cancel: bool = True) -> None:
        """Wait for the tasks; with `cancel`, only for the one that has begun."""
        self._thread.shutdown(wait=True, cancel_futures=cancel)
