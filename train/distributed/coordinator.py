"""The client's part of training over several workers: it only coordinates.

    for each epoch: a long task on each worker
        for each iteration of the epoch:
            until all buckets are done: answer the workers, notice lost workers, start tasks on new ones
            rename the newest files to be the next version; write the stats; commit

A lost worker costs the bucket that it was training. Another worker trains that bucket, from the files that
the last bucket of these partitions left. When Dask brings a worker back, the worker gets a task. If
everything is killed, the next run starts from the last commit.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.errors import ClusterError
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from graphmill.vocab import Bucket
from train.config import TrainConfig
from train.distributed.bucket_assignment import Assignment, Dynamic, Tournament, rounds_of
from train.distributed.messages import Message, ReduceGroup
from train.distributed.partition_locations import PartitionLocations
from train.distributed.worker_pool import WorkerPool, WorkerTask
from train.edges import schedule
from train.edges.bucket_order import order_of
from train.edges.partitions import PartitionKey, all_keys, is_shared, keys_of
from train.evaluation.job import evaluate
from train.plan.plan import all_reduce_of
from train.run.run_metrics import Visit
from train.run.training_run import TrainingRun

MAX_LOSSES = 3  # workers that one bucket may cost

log = logging.getLogger("graphmill")


class Coordinator(TrainingRun):
    """A run of training on several workers."""

    def __init__(self, config: Config, client: Client, claim: Claim = NO_CLAIM) -> None:
        version = pbg_checkpoint.read_version(config.checkpoint_path)
        on_worker = partial(cluster.run_task, client, evaluate, description="evaluate")
        super().__init__(config, schedule.plan(config), version, claim, on_worker)
        self.settings = config.section(TrainConfig)
        self.backend = all_reduce_of(config)
        self.locations = PartitionLocations(config, version)
        self.pool = WorkerPool(client, config, self.schedule)
        self._untouched: list[PartitionKey] = []  # partitions that no bucket needs: they are copied
        self._grants = 0
        self.losses: Counter[Bucket] = Counter()
        self._base = self.locations.shared  # state that buckets start from
        self._checksums: Checksums = {}  # checksums of the next version's files, by name
        self._worker_figures: dict[str, Any] = {}
        self._members: list[str] = []  # the last workers that reduced together, and the name of their group
        self._group = ""

    def iterate(self, iteration: Iteration) -> None:
        """Have the workers train all buckets, and commit; after an epoch the tasks end."""
        self.metrics.start_iteration(iteration)
        order = order_of(self.config, iteration)
        assignment = self._assignment(order)
        used = {key for bucket in order for key in keys_of(self.config, bucket)}
        others = [key for key in all_keys(self.config) if key not in used]
        self._untouched = [key for key in others if not is_shared(self.config, key)]
        self._base = self.locations.shared
        while not assignment.finished:
            for task in self.pool.poll(start_tasks=True):
                self._lose(task, assignment)
            self._answer(assignment)
            message = self.pool.receive()
            if message is not None:
                self._handle(message, assignment)
        begun = time.monotonic()
        self.claim.check()
        self.locations.complete()
        self.commit(self._checksums)
        self.locations.committed()
        self.metrics.end_iteration(wait_s=time.monotonic() - begun)
        if self.version % self.schedule.per_epoch == 0:
            for task in list(self.pool.tasks.values()):
                self._worker_figures = self.pool.finish(task) or self._worker_figures

    def close(self) -> None:
        """End the workers' tasks."""
        self.pool.shut_down()

    def own_figures(self) -> dict[str, Any]:
        """The figures of a worker, and the number of workers."""
        return self._worker_figures | {"num_workers": self.settings.num_workers}

    def _assignment(self, order: Sequence[Bucket]) -> Assignment:
        from_one = not self.version and not self.config.init_path
        if self.settings.bucket_assignment == "dynamic":
            return Dynamic(order, self._own_keys, from_one=from_one)
        rounds = rounds_of(order, self._own_keys, self.settings.num_workers, from_one=from_one)
        return Tournament(rounds)

    def _own_keys(self, bucket: Bucket) -> set[PartitionKey]:
        """The partitions that no other worker may have while the bucket is trained."""
        return {key for key in keys_of(self.config, bucket) if not is_shared(self.config, key)}

    def _handle(self, message: Message, assignment: Assignment) -> None:
        task = self.pool.tasks.get(message["task"])
        if task is None:
            return  # the worker counts as lost
        bucket = task.bucket
        match message["kind"]:
            case "ready":
                task.waits_for = "bucket"
            case "progress" if bucket is not None:
                self.metrics.report(bucket, message["edges"], message["loss"])
            case "trained" if bucket is not None:
                task.visit = Visit(bucket, worker=task.address, **message["visit"])
                task.waits_for = "turn"
            case "published" if bucket is not None and task.visit is not None:
                keys = [*self._own_keys(bucket), *task.untouched]
                self.locations.publish(task.grant, keys, shares=task.leader == task.grant)
                self._checksums |= {storage.name(uri): each for uri, each in message["checksums"].items()}
                self.metrics.add(task.visit)
                if assignment.commit(bucket):
                    self._base = self.locations.shared
                task.last, task.waits_for, task.publishing = bucket, "bucket", False
                task.drop_bucket()
                in_use = {each.base for each in self.pool.tasks.values() if each.base is not None}
                self.locations.forget_shared(in_use | {self._base})

    def _answer(self, assignment: Assignment) -> None:
        """Send waiting workers a bucket or their turn to publish, where there is one."""
        tasks = self.pool.tasks.values()
        if not any(each.publishing for each in tasks):
            self._publish_next(assignment)
        for task in tasks:
            if task.waits_for == "bucket" and self._may_begin(assignment):
                bucket = assignment.next_bucket(task.last)
                if bucket is not None:
                    self._grant(task, bucket)
        stuck = self.backend is None and all(each.waits_for == "turn" for each in tasks)
        if stuck and tasks and (bucket := assignment.next_bucket(None)) is not None:
            # All workers wait for the turn of a bucket whose worker was lost: one gives up its own bucket.
            task = next(iter(tasks))
            self._give_back(task, assignment)
            self._grant(task, bucket)

    def _may_begin(self, assignment: Assignment) -> bool:
        """Whether to hand out buckets. A round that reduces begins when all workers wait.

        Then a group has the same members in every run, and adds up in the same order.
        """
        tasks = self.pool.tasks.values()
        begun = any(each.bucket in assignment.publish_group for each in tasks)
        return self.backend is None or begun or all(each.waits_for == "bucket" for each in tasks)

    def _publish_next(self, assignment: Assignment) -> None:
        """Let one worker merge files; or start an all-reduce when all that a round can train is trained."""
        tasks = self.pool.tasks.values()
        waiting = {each.bucket: each for each in tasks if each.bucket and each.waits_for == "turn"}
        if self.backend is None:
            for task in [each for bucket, each in waiting.items() if assignment.may_publish(bucket)][:1]:
                self._publish(task, None)
            return
        group = [waiting[bucket] for bucket in assignment.publish_group if bucket in waiting]
        is_whole = len(group) == len(assignment.publish_group) or len(waiting) == len(tasks)
        if not group or not is_whole:
            return
        members = [each.name for each in group]
        if len(group) > 1 and members != self._members:
            self._members, self._group = members, f"{self.pool.topic}-{group[0].grant}"
        for rank, task in enumerate(group):
            leader = group[0].grant
            self._publish(task, ReduceGroup(name=self._group, rank=rank, size=len(group), leader=leader))

    def _publish(self, task: WorkerTask, group: ReduceGroup | None) -> None:
        task.waits_for, task.publishing = None, True
        task.leader = task.grant if group is None else group["leader"]
        task.send("publish", shared=list(self.locations.shared), group=group)

    def _grant(self, task: WorkerTask, bucket: Bucket) -> None:
        self._grants += 1
        task.bucket, task.grant, task.waits_for = bucket, self._grants, None
        task.base = self._base
        task.untouched, self._untouched = tuple(self._untouched), []
        task.send(
            "train",
            bucket=list(bucket),
            version=self.version,
            grant=self._grants,
            folder=self.locations.folder(self._grants),
            shared=list(self._base),
            partitions=[[*key, list(self.locations.of(key))] for key in sorted(self._own_keys(bucket))],
            untouched=[[*key, list(self.locations.of(key))] for key in task.untouched],
        )

    def _lose(self, task: WorkerTask, assignment: Assignment) -> None:
        bucket = task.bucket
        if bucket is None:
            log.info("training: worker %s was lost", task.address)
            return
        if task.publishing and self.backend is not None:
            raise ClusterError(
                f"training: worker {task.address} was lost in an all-reduce; run it again: it goes on "
                f"from version {self.version}. train.all_reduce: files survives lost workers"
            )
        log.info("training: worker %s was lost, bucket %s is trained again", task.address, bucket)
        self._give_back(task, assignment)
        self.losses[bucket] += 1
        if self.losses[bucket] > MAX_LOSSES:
            raise ClusterError(
                f"training: bucket {bucket} took {self.losses[bucket]} workers down with it, the last on "
                f"{task.address}; a worker that exceeds its memory limit is killed: see "
                "cluster.worker_memory"
            )

    def _give_back(self, task: WorkerTask, assignment: Assignment) -> None:
        """Let another worker train the task's bucket; the task's work on it is void."""
        if task.bucket is not None:
            assignment.give_back(task.bucket)
            self.metrics.forget(task.bucket)
        self._untouched += task.untouched
        task.drop_bucket()
