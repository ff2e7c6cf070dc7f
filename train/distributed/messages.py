"""Messages between the coordinator and its workers: small dicts that go through Dask's scheduler.

    worker -> coordinator   Dask events of one topic, each with `task`, the name of the worker's task
      ready                 asks for a bucket
      progress              `edges` of the bucket are done; `loss` is the sum of their losses
      lacking               a partition of the bucket is nowhere; asks for another bucket
      trained               the bucket is trained; `visit` holds its figures; asks to publish
      published             all that the bucket changed may be fetched, `files` may be read; asks for the
                            next bucket
      saved                 `files` of partitions that were written while others were trained
      written               the `files` of a message `write`, and what moved; `checksums` of the shared
                            state in `folder`, if it was to write it; asks for a bucket
    coordinator -> worker   a Dask queue per task
      train                 `bucket`, `version`, `grant`, the sources of `partitions`; `then`:
                            the bucket that follows, and the sources of what it adds, or that probably
                            follows, without sources: its edges may be read. In answer to `trained`:
                            drop the last bucket, another worker will train it again
      publish               push to the shards of the shared state
      write                 write `partitions`, and if `shared` the shared state, to `folder` with all copies
      finished              no bucket is left

Embeddings never travel here: workers fetch them from each other (partition_holder) or read them from files.
"""

import asyncio
import time
from concurrent.futures import wait
from typing import Any, NamedTuple

from distributed import Queue, Worker, get_client, get_worker
from distributed.core import send_recv
from distributed.protocol import to_serialize

from graphmill.display import progress

Message = dict[str, Any]

_PROGRESS_S = 0.5  # between two messages of progress of a few workers
_MANY_WORKERS = 8  # more of them send fewer messages each
_CANCEL_POLL_S = 2.0  # between two checks whether a waiting task is cancelled


class SavedFile(NamedTuple):
    """A file that a worker has written: one revision of a partition, as of `version`."""

    revision: int
    folder: str
    version: int  # 0 where the first revision is still to be drawn
    checksum: str  # "" in a committed version, whose manifest has it
    is_replicated: bool  # whether the file has all the copies that HDFS makes by default


class PartitionCopies(NamedTuple):
    """Copies of one revision of a partition: in a worker's memory, in a file, or both."""

    revision: int
    holder: str = ""  # the worker's PartitionHolder, at `address`; "" where there is none
    address: str = ""
    file: SavedFile | None = None  # None: there is none yet


class WorkerChannel:
    """A task's end of the messages; the coordinator's end is `WorkerPool`."""

    def __init__(self, topic: str, task: str, num_workers: int) -> None:
        self.topic = topic
        self._task = task
        self._worker = get_worker()
        self._progress_s = _PROGRESS_S * max(1, num_workers / _MANY_WORKERS)
        self._client = get_client()
        self._queue = Queue(task, client=self._client)
        self._progress_sent_s = 0.0

    def send(self, kind: str, **content: Any) -> None:
        """Send a message to the coordinator; any thread may."""
        self._worker.log_event(self.topic, {"kind": kind, "task": self._task, **content})

    def ask(self, kind: str, **content: Any) -> Message:
        """Send a message to the coordinator, and wait for its answer."""
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
        """Send the bucket's progress, at most twice per second, and less often with many workers."""
        progress.stop_if_cancelled()
        now = time.monotonic()
        if now - self._progress_sent_s >= self._progress_s:
            self._progress_sent_s = now
            self.send("progress", edges=num_edges, loss=loss)


CONNECT_S = 5.0  # Dask knocks at a lost worker's door for 30 s, and others would wait with it


def call_actor(worker: Worker, address: str, actor: str, method: str, *arguments: Any) -> Any:
    """The result of a method of the actor with the key `actor`; in any thread but the event loop's.

    It ends when the actor's worker is lost: Dask's own `Actor` then awaits a future that nobody completes."""

    async def ask() -> Any:
        serialized = [to_serialize(argument) for argument in arguments]
        comm = await worker.rpc.connect(address, timeout=CONNECT_S)
        try:
            return await send_recv(comm, op="actor_execute", function=method, actor=actor, args=serialized)
        finally:
            worker.rpc.reuse(address, comm)

    answer = asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result()
    if answer["status"] != "OK":
        raise answer["exception"]
    return answer["result"]
