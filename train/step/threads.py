"""Work shared by threads, for code that spends its time where the GIL is released."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], int]  # gives the amount of work that it has done


class Threads:
    """Runs tasks in the calling thread and others beside it, and tells the amount of work done so far.

    Attributes:
        lock: for what tasks share.
    """

    def __init__(self, num_threads: int, tell: Callable[[int], None] = lambda done: None) -> None:
        self.num_threads = num_threads
        self.lock = threading.Lock()
        self._tell = tell
        self._done = 0

    def run(self, tasks: Iterator[Task]) -> None:
        """Run all tasks; they are made one by one as threads get free. The first error ends the rest."""
        with ThreadPoolExecutor(max(1, self.num_threads - 1)) as pool:
            others = [pool.submit(self._work, tasks) for _ in range(self.num_threads - 1)]
            # Only the calling thread tells: Dask knows which of its tasks this thread belongs to.
            self._work(tasks, self._tell)
            for other in others:
                other.result()

    def _work(self, tasks: Iterator[Task], tell: Callable[[int], None] = lambda done: None) -> None:
        while True:
            with self.lock:
                task = next(tasks, None)
            if task is None:
                return
            try:
                amount = task()
                with self.lock:
                    self._done += amount
                tell(self._done)
            except BaseException:
                with self.lock:
                    for _ in tasks:  # nothing is left for the others
                        pass
                raise
