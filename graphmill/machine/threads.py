"""Threads that share work, for code that releases the GIL most of the time."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], int]  # returns the amount of work that it has done


class Threads:
    """Runs tasks in the calling thread and in others, and reports the amount of work done so far.

    Attributes:
        lock: guards objects that tasks share.
    """

    def __init__(self, num_threads: int, report: Callable[[int], None]) -> None:
        self.num_threads = num_threads
        self.lock = threading.Lock()
        self._report = report
        self._done = 0

    def run(self, tasks: Iterator[Task]) -> None:
        """Run all tasks; a free thread makes the next task. The first error stops all threads."""
        with ThreadPoolExecutor(max(1, self.num_threads - 1)) as pool:
            others = [pool.submit(self._work, tasks) for _ in range(self.num_threads - 1)]
            # Only the calling thread reports: Dask knows its task.
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
                    for _ in tasks:  # leave nothing for the other threads
                        pass
                raise
