"""What the coordinator and its workers tell each other: small dicts, by way of Dask's scheduler.

    worker -> coordinator   Dask events of one topic, each with `attempt`, the name of the worker's task
      ready                 give me a bucket
      progress              `edges` of the bucket are done, with a sum of losses `loss`
      trained               its partitions are written; `visit` tells what it came to; my turn to publish?
      published             all it changed is written: count it, and give me the next one
    coordinator -> worker   a Dask queue of the attempt's own
      train                 `bucket`, `version` and `grant`; where to read `partitions` and `shared`; as an
                            answer to `trained`: let the last bucket go, another worker will train it again
      publish               it is your turn: merge with `shared`, and before with all that are in `together`
      finished              nothing is left

Embeddings never come this way: they move through the checkpoint's storage.
"""

import asyncio
import queue
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, TypedDict

from distributed import Client, Queue, get_client, get_worker

from graphmill.display import progress

Message = dict[str, Any]
KEPT = "graphmill_training"  # the attribute of a Dask worker that holds what a task leaves for the next one


class Together(TypedDict):
    """The group that a worker publishes with."""

    name: str
    rank: int
    size: int
    leader: int  # the grant of the first member, who writes what comes out


_TELL_S = 0.5  # how often a worker tells of its progress
_LISTEN_S = 2.0  # how often a worker that waits looks whether it is still wanted


class WorkerEnd:
    """A task's end of the line."""

    def __init__(self, topic: str, attempt: str) -> None:
        self.topic = topic
        self._attempt = attempt
        self._client = get_client()
        self._queue = Queue(attempt, client=self._client)
        self._told_s = 0.0

    def send(self, kind: str, **content: Any) -> None:
        """Tell the coordinator."""
        get_worker().log_event(self.topic, {"kind": kind, "attempt": self._attempt, **content})

    def ask(self, kind: str, **content: Any) -> Message:
        """Tell the coordinator, and wait for its answer.

        Raises:
            CancelledError: nobody wants the task's work any more.
        """
        self.send(kind, **content)
        # Waiting here, not with a timeout at the scheduler, which would log each one as an error.
        answer = asyncio.run_coroutine_threadsafe(self._answer(), self._client.loop.asyncio_loop)
        try:
            while not wait([answer], _LISTEN_S).done:
                progress.stop_if_cancelled()
            return answer.result()
        finally:
            answer.cancel()

    async def _answer(self) -> Message:
        answer: Message = await self._queue.get()
        return answer

    def tell_progress(self, num_edges: int, loss: float) -> None:
        """Tell now and then how far the bucket is.

        Raises:
            CancelledError: nobody wants the task's work any more.
        """
        progress.stop_if_cancelled()
        now = time.monotonic()
        if now - self._told_s >= _TELL_S:
            self._told_s = now
            self.send("progress", edges=num_edges, loss=loss)


class CoordinatorEnd:
    """The client's end of all lines.

    Attributes:
        topic: of the workers' events.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self.topic = topic
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._queues: dict[str, Queue] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive messages while the block runs."""
        self._client.subscribe_topic(self.topic, lambda event: self._inbox.put(event[1]))
        try:
            yield
        finally:
            self._client.unsubscribe_topic(self.topic)
            for attempt in list(self._queues):
                self.hang_up(attempt)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None if none comes."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def open(self, attempt: str) -> None:
        """Make the line to a new task."""
        self._queues[attempt] = Queue(attempt, client=self._client)

    def send(self, attempt: str, kind: str, **content: Any) -> None:
        """Answer a task."""
        self._queues[attempt].put({"kind": kind, **content})

    def hang_up(self, attempt: str) -> None:
        """Close the line to a task that is gone."""
        self._queues.pop(attempt).close()
