"""The workers that train: one task on each worker, messages, workers that were lost or have joined."""

import logging
import queue
import time
import uuid
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, Queue

from graphmill import cluster
from graphmill.config import Config
from graphmill.errors import ClusterError
from graphmill.vocab import Bucket
from train.config import TrainConfig
from train.distributed.messages import WORKER_ATTRIBUTE, Message
from train.edges.partitions import Location, PartitionKey
from train.edges.schedule import Schedule
from train.run.run_metrics import Visit

POLL_S = 0.25  # between two looks at the cluster's workers
NO_WORKER_S = 120.0  # the run fails after so long without any worker

log = logging.getLogger("graphmill")


@dataclass(eq=False)
class WorkerTask:
    """A worker's task, and the bucket that it has.

    Attributes:
        queue: messages to the task.
        bucket: bucket that it trains under the permission number `grant`.
        base: shared state that the bucket started from.
        visit: figures of the bucket, once it is trained.
        waits_for: "bucket", "turn" (to publish), or None.
        last: bucket that it trained before.
        untouched: partitions that no bucket needs and that this task copies to the next version.
        leader: the grant that writes the shared state of its group.
    """

    name: str
    address: str
    future: Future
    queue: Queue
    bucket: Bucket | None = None
    grant: int = 0
    base: Location | None = None
    visit: Visit | None = None
    waits_for: str | None = None
    last: Bucket | None = None
    untouched: tuple[PartitionKey, ...] = ()
    publishing: bool = False
    leader: int = 0

    def send(self, kind: str, **content: Any) -> None:
        """Answer the task."""
        self.queue.put({"kind": kind, **content})

    def drop_bucket(self) -> None:
        """Forget the bucket, which is published or goes back."""
        self.bucket = self.visit = self.base = None
        self.untouched = ()


class WorkerPool:
    """At most train.num_workers tasks at a time, each on a worker of its own.

    Attributes:
        tasks: the tasks by name.
        topic: topic of the workers' messages.
    """

    def __init__(self, client: Client, config: Config, plan: Schedule) -> None:
        self.tasks: dict[str, WorkerTask] = {}
        self.topic = f"graphmill-train-{uuid.uuid4().hex[:12]}"
        self._client, self._config, self._plan = client, config, plan
        self._num_workers = config.section(TrainConfig).num_workers
        self._polled_s = 0.0
        self._worker_seen_s = time.monotonic()
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        client.subscribe_topic(self.topic, lambda event: self._inbox.put(event[1]))
        num_present = len(cluster.worker_addresses(client))
        if num_present < self._num_workers:
            log.info(
                "training: %d workers are there, train.num_workers asks for %d",
                num_present,
                self._num_workers,
            )

    def receive(self) -> Message | None:
        """The next message of a worker, or None after POLL_S."""
        try:
            return self._inbox.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def poll(self, *, start_tasks: bool) -> list[WorkerTask]:
        """Return the tasks whose workers were lost; with `start_tasks`, give each free worker a task.

        Raises:
            ClusterError: the cluster has had no worker for NO_WORKER_S, or went away.
            Exception: a task has raised it.
        """
        now = time.monotonic()
        if now - self._polled_s < POLL_S:
            return []
        if now - self._polled_s > NO_WORKER_S:  # the coordinator did something else in between
            self._worker_seen_s = now
        self._polled_s = now
        for task in self.tasks.values():
            if task.future.status == "error":
                task.future.result()
        try:
            present = cluster.worker_addresses(self._client)
        except OSError as error:
            if self._client.status == "running":
                return []  # asked again at the next poll
            raise ClusterError(f"training: the cluster went away: {error}") from error
        lost = [task for task in self.tasks.values() if task.address not in present]
        for task in lost:
            self._client.cancel([task.future])
            self._forget(task)
        if self.tasks:
            self._worker_seen_s = now
        if start_tasks:
            self._start_tasks(present)
        return lost

    def finish(self, task: WorkerTask) -> dict[str, Any]:
        """End a task; returns its figures, which are empty if its worker is lost first."""
        if task.name in self.tasks:
            task.send("finished")
        while task.name in self.tasks and not task.future.done():
            self.receive()
            self.poll(start_tasks=False)
        if task.name not in self.tasks:
            return {}
        figures: dict[str, Any] = task.future.result()
        self._forget(task)
        return figures

    def shut_down(self) -> None:
        """Cancel the tasks, each of which notices by itself; free what the workers keep between tasks."""
        self._client.cancel([task.future for task in self.tasks.values()])
        self._client.run(_free, on_error="ignore")
        self._client.unsubscribe_topic(self.topic)
        for task in list(self.tasks.values()):
            self._forget(task)

    def _forget(self, task: WorkerTask) -> None:
        del self.tasks[task.name]
        task.queue.close()

    def _start_tasks(self, present: set[str]) -> None:
        taken = {task.address for task in self.tasks.values()}
        for address in sorted(present - taken)[: self._num_workers - len(taken)]:
            name = f"graphmill-train-{uuid.uuid4().hex[:12]}"
            num_on_host = min(self._num_workers, sum(_host(each) == _host(address) for each in present))
            to_task = Queue(name, client=self._client)
            future = self._client.submit(
                _work,
                self._config,
                self._plan,
                self.topic,
                name,
                num_on_host,
                key=name,
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
            self.tasks[name] = WorkerTask(name, address, future, to_task)
        if not self.tasks and time.monotonic() - self._worker_seen_s > NO_WORKER_S:
            raise ClusterError(
                f"training: no worker has been there for {NO_WORKER_S:.0f} s; a worker that exceeds its "
                "memory limit is killed: see cluster.worker_memory"
            )


def _work(*arguments: Any) -> dict[str, Any]:
    from train.distributed.worker import work  # imports torch: only workers need it

    return work(*arguments)


def _free(dask_worker: Any) -> None:
    vars(dask_worker).pop(WORKER_ATTRIBUTE, None)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
