"""Messages between the coordinator and its workers: small dicts that go through Dask's scheduler.

    worker -> coordinator   Dask events of one topic, each with `task`, the name of the worker's task
      ready                 asks for a bucket
      progress              `edges` of the bucket are done; `loss` is the sum of their losses
      trained               the bucket's partitions are written; `visit` holds its figures; asks to publish
      published             all that the bucket changed is written; asks for the next bucket
    coordinator -> worker   a Dask queue per task
      train                 `bucket`, `version`, `grant`, and the locations of `partitions` and `shared`; in
                            answer to `trained`: drop the last bucket, another worker will train it again
      publish               merge with the shared state at `shared`, and before that within `group`
      finished              no bucket is left

Embeddings never travel here: they move through the checkpoint's storage.
"""

import asyncio
import time
from concurrent.futures import wait
from typing import Any, TypedDict

from distributed import Queue, get_client, get_worker

from graphmill.display import progress

Message = dict[str, Any]
WORKER_ATTRIBUTE = "graphmill_training"  # of a Dask worker: holds what one task leaves for the next one

_PROGRESS_S = 0.5  # between two messages of progress
_CANCEL_POLL_S = 2.0  # between two checks whether a waiting task is cancelled


class ReduceGroup(TypedDict):
    """The workers that publish together."""

    name: str
    rank: int
    size: int
    leader: int  # the grant of the first member, which writes the result


class WorkerChannel:
    """A task's end of the messages; the coordinator's end is `WorkerPool`."""

    def __init__(self, topic: str, task: str) -> None:
        self.topic = topic
        self._task = task
        self._client = get_client()
        self._queue = Queue(task, client=self._client)
        self._progress_sent_s = 0.0

    def send(self, kind: str, **content: Any) -> None:
        """Send a message to the coordinator."""
        get_worker().log_event(self.topic, {"kind": kind, "task": self._task, **content})

    def ask(self, kind: str, **content: Any) -> Message:
        """Send a message to the coordinator, and wait for its answer.

        Raises:
            CancelledError: the task has been cancelled.
        """
        self.send(kind, **content)
        # Waiting here, not with a timeout at the scheduler, which would log each timeout as an error.
        answer = asyncio.run_coroutine_threadsafe(self._answer(), self._client.loop.asyncio_loop)
        try:
            while not wait([answer], _CANCEL_POLL_S).done:
                progress.stop_if_cancelled()
            return answer.result()
        finally:
            answer.cancel()

    async def _answer(self) -> Message:
        answer: Message = await self._queue.get()
        return answer

    def report_progress(self, num_edges: int, loss: float) -> None:
        """Send the bucket's progress, at most twice per second.

        Raises:
            CancelledError: the task has been cancelled.
        """
        progress.stop_if_cancelled()
        now = time.monotonic()
        if now - self._progress_sent_s >= _PROGRESS_S:
            self._progress_sent_s = now
            self.send("progress", edges=num_edges, loss=loss)
