"""The workers that train: one task on each worker, messages, workers that were lost or have joined."""

import logging
import queue
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import Client, Future, Queue

from graphmill import cluster
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.errors import ClusterError
from graphmill.machine import shortage
from graphmill.vocab import Bucket
from train.distributed.messages import Message
from train.distributed.partition_holder import PartitionHolder
from train.distributed.shard_placement import ShardPlacement
from train.edges.schedule import Schedule
from train.run.run_metrics import Visit

POLL_S = 0.25  # between two looks at the cluster's workers
NO_WORKER_S = 120.0  # the run fails after so long without any worker

log = logging.getLogger("graphmill")


@dataclass(eq=False)
class WorkerTask:
    """A worker's task, and the bucket that it has."""

    name: str
    address: str
    holder: str  # the worker's PartitionHolder
    bucket: Bucket | None = None  # that it trains under the permission number `grant`
    grant: int = 0
    then: Bucket | None = None  # that it has been promised next
    likely: Bucket | None = None  # that it probably trains next, whose edges it reads, without a promise
    # Partitions of its last bucket, each with the grant that brought it.
    held: dict[PartitionKey, int] = field(default_factory=dict)
    visit: Visit | None = None  # figures of the bucket, once it is trained, and waits for its turn to publish
    is_publishing: bool = False
    writes: tuple[PartitionKey, ...] = ()  # for the commit
    writes_shared: bool = False  # it writes the shared state for the commit

    def drop_bucket(self) -> None:
        """Forget the bucket, which is published or goes back."""
        self.bucket, self.visit, self.is_publishing = None, None, False


class WorkerLoss(NamedTuple):
    """A worker that was lost, with all that it held; `task` is None between two epochs."""

    address: str
    holder: str
    task: WorkerTask | None


class WorkerPool:
    """Runs at most train.num_workers tasks at a time, one per worker."""

    def __init__(self, client: Client, config: Config, schedule: Schedule, num_blocks: int) -> None:
        self.tasks: dict[str, WorkerTask] = {}  # by name
        self.topic = f"graphmill-train-{uuid.uuid4().hex[:12]}"  # of the workers' messages
        self._client, self._config = client, config
        self._of_holder = schedule, num_blocks
        settings = config.train
        self._num_workers = settings.num_workers
        in_rounds = settings.bucket_assignment == "tournament"
        self.shards = ShardPlacement(client, self._num_workers, in_rounds=in_rounds)
        self._running: dict[str, tuple[Future, Queue]] = {}  # of each task, by name
        self._holders: dict[str, Future] = {}  # the actor of each worker, by address
        self._lost: list[WorkerLoss] = []  # noticed while the coordinator did something else
        self._polled_s = 0.0
        self._worker_seen_s = time.monotonic()
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        client.subscribe_topic(self.topic, lambda event: self._inbox.put(event[1]))
        num_present = len(cluster.worker_addresses(client))
        if num_present < self._num_workers:
            asked = self._num_workers
            log.info("training: workers: %d; train.num_workers asks for %d", num_present, asked)

    def send(self, task: WorkerTask, kind: str, **content: Any) -> None:
        """Send a task a message."""
        if task.name in self._running:
            self._running[task.name][1].put({"kind": kind, **content})

    def receive(self) -> Message | None:
        """The next message of a worker, or None after POLL_S."""
        try:
            return self._inbox.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def poll(self) -> list[WorkerLoss]:
        """Give each free worker a task, and return the workers that were lost."""
        self._look(start_tasks=True)
        lost, self._lost = self._lost, []
        return lost

    def finish(self, task: WorkerTask) -> dict[str, Any]:
        """End a task; returns its figures, which are empty if its worker is lost first."""
        self.send(task, "finished")
        while task.name in self.tasks and not self._running[task.name][0].done():
            self.receive()
            self._look(start_tasks=False)
        if task.name not in self.tasks:
            return {}
        figures: dict[str, Any] = self._running[task.name][0].result()
        self._forget(task)
        return figures

    def shut_down(self) -> None:
        """Cancel the tasks, each of which notices by itself; free what the workers hold."""
        with cluster.cleaning_up(self._client):
            self._client.cancel([future for future, _ in self._running.values()])
            self._client.unsubscribe_topic(self.topic)
            for task in list(self.tasks.values()):
                self._forget(task)
            self._holders.clear()
            self.shards.close()

    def _look(self, *, start_tasks: bool) -> None:
        now = time.monotonic()
        if now - self._polled_s < POLL_S:
            return
        if now - self._polled_s > NO_WORKER_S:  # the coordinator did something else in between
            self._worker_seen_s = now
        self._polled_s = now
        failed = [name for name, (future, _) in self._running.items() if future.status == "error"]
        try:
            present = cluster.worker_addresses(self._client)
        except OSError as error:
            if self._client.status == "running":
                return  # asked again at the next poll
            raise ClusterError(f"training: the cluster went away: {error}") from error
        for address in [holder for holder in self._holders if holder not in present]:
            self._lose(address)
        self.shards.tend(present)
        for name in failed:
            if name in self.tasks:
                self._running[name][0].result()
        if self.tasks:
            self._worker_seen_s = now
        if start_tasks:
            self._start_tasks(present)

    def _lose(self, address: str) -> None:
        holder = self._holders.pop(address)
        task = next((task for task in self.tasks.values() if task.address == address), None)
        if task is not None:
            self._client.cancel([self._running[task.name][0]])
            self._forget(task)
        self._lost.append(WorkerLoss(address, holder.key, task))

    def _forget(self, task: WorkerTask) -> None:
        del self.tasks[task.name]
        self._running.pop(task.name)[1].close()

    def _start_tasks(self, present: set[str]) -> None:
        taken = {task.address for task in self.tasks.values()}
        # first the workers that have partitions in memory
        free = sorted(present - taken, key=lambda address: (address not in self._holders, address))
        for address in free[: self._num_workers - len(taken)]:
            name = f"graphmill-train-{uuid.uuid4().hex[:12]}"
            num_on_host = min(self._num_workers, sum(_host(other) == _host(address) for other in present))
            to_task = Queue(name, client=self._client)
            there = {"workers": [address], "allow_other_workers": False, "pure": False}
            if address not in self._holders:
                key = f"graphmill-partitions-{uuid.uuid4().hex[:12]}"
                self._holders[address] = self._client.submit(
                    PartitionHolder, *self._of_holder, key=key, actor=True, **there
                )
            actors = self._holders[address], self.shards.start(address)
            keys = [actor.key for actor in actors]
            arguments = actors, self._config, *keys, self.topic, name, num_on_host
            future = self._client.submit(_work, *arguments, key=name, **there)
            self.tasks[name] = WorkerTask(name, address, keys[0])
            self._running[name] = future, to_task
        if not self.tasks and time.monotonic() - self._worker_seen_s > NO_WORKER_S:
            raise ClusterError(
                f"training: no worker has been there for {NO_WORKER_S:.0f} s; {shortage.of_killed_workers()}"
            )


def _work(_: Any, *arguments: Any) -> dict[str, Any]:
    """Work beside the actors that the first argument stands for, and which so exist before the task."""
    from train.distributed.worker import work  # imports torch: only workers need it

    return work(*arguments)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
