"""Threads that share work, for code that spends its time where the GIL is released."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], int]  # returns the amount of work that it has done


class Threads:
    """Runs tasks in the calling thread and in others, and reports the amount of work done so far.

    Attributes:
        lock: guards what tasks share.
    """

    def __init__(self, num_threads: int, report: Callable[[int], None] = lambda done: None) -> None:
        self.num_threads = num_threads
        self.lock = threading.Lock()
        self._report = report
        self._done = 0

    def run(self, tasks: Iterator[Task]) -> None:
        """Run all tasks; each is made when a thread is free. The first error stops the other threads."""
        with ThreadPoolExecutor(max(1, self.num_threads - 1)) as pool:
            others = [pool.submit(self._work, tasks) for _ in range(self.num_threads - 1)]
            # Only the calling thread reports: Dask knows which task that thread belongs to.
            self._work(tasks, self._report)
            for other in others:
                other.result()

    def _work(self, tasks: Iterator[Task], report: Callable[[int], None] = lambda done: None) -> None:
        while True:
            with self.lock:
                task = next(tasks, None)
            if task is None:
                return
            try:
                amount = task()
                with self.lock:
                    self._done += amount
                report(self._done)
            except BaseException:
                with self.lock:
                    for _ in tasks:  # leaves nothing for the other threads
                        pass
                raise
