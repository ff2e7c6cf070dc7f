"""The client's part of training over several workers: it only coordinates.

    for each epoch: a long task on each worker
        for each iteration of the epoch:
            until all buckets are done: answer the workers, notice lost workers, start tasks on new ones
            have the workers write the partitions that are in no file yet
            rename the newest files to be the next version; write the stats; commit

A worker has a bucket, and often the promise of the bucket that follows: nobody else gets its partitions.
With two or more partitions per worker, buckets are pairs of blocks of partitions (train/edges/visits.py).

Lost workers: docs/explanation/distributed_training.md.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import cycle
from typing import Any, Self

from distributed import Client

from graphmill import cluster, storage
from graphmill.ask.evaluate.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets, is_shared, key_of
from graphmill.errors import ClusterError
from graphmill.machine import shortage
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from graphmill.vocab import Bucket, Side
from train.distributed.bucket_assignment import Assignment, Dynamic, Tournament, rounds_of
from train.distributed.messages import Message, SavedFile
from train.distributed.partition_locations import PartitionLocations
from train.distributed.worker_pool import WorkerLoss, WorkerPool, WorkerTask
from train.edges import schedule
from train.edges.schedule import Schedule
from train.edges.visits import Blocks, order_of
from train.run.run_metrics import Visit
from train.run.training_run import TrainingRun
from train.run.validation import Rank

MAX_LOSSES = 3  # workers that one bucket may cost
LACKING_S = 600.0  # the run fails if a partition is nowhere for so long, and no worker counts as lost
UNITS_PER_PROMISE = 3  # a worker has two blocks or partitions and reads one: fewer would starve others

log = logging.getLogger("graphmill")


class Coordinator(TrainingRun):
    """A run of training on several workers."""

    def __init__(
        self,
        config: Config,
        schedule: Schedule,
        pool: WorkerPool,
        evaluate: Rank,
        claim: Claim = NO_CLAIM,
        num_blocks: int = 0,
    ) -> None:
        """`num_blocks` counts the blocks that partitions are joined to; 0: buckets are trained one by one."""
        version = pbg.read_version(config.checkpoint_path)
        super().__init__(config, schedule, version, claim, evaluate)
        self.settings = config.train
        self.locations = PartitionLocations(config, version)
        self.pool = pool
        self.losses: Counter[Bucket] = Counter()
        self.blocks = Blocks(config, schedule, num_blocks) if num_blocks else None
        self._own = {} if self.blocks else _own_partitions(config)  # those of the iteration's buckets
        num_units = num_blocks or len(frozenset().union(*self._own.values()))
        self._prefetch = self.settings.prefetch is not False
        self._promises = self._prefetch and num_units >= UNITS_PER_PROMISE * self.settings.num_workers
        self._grants = 0
        self._done: dict[int, Bucket] = {}  # buckets of the iteration that are done, by grant
        self._lacking_since_s: dict[Bucket, float] = {}
        self._idle: dict[str, WorkerTask] = {}  # tasks that wait for a bucket, the longest first, by name
        self._checksums: Checksums = {}  # checksums of the next version's shared files, by name
        self._moved: Counter[str] = Counter()  # for the commit
        self._worker_figures: dict[str, Any] = {}

    @classmethod
    def on(cls, client: Client, config: Config, claim: Claim = NO_CLAIM) -> Self:
        """A run on the workers of a Dask cluster."""
        plan = schedule.plan(config)
        on_worker = partial(cluster.run_task, client, evaluate, description="evaluate")
        arguments = config, plan, cluster.memory_of_workers(client)
        blocks = cluster.run_task(client, _count_blocks, *arguments, description="planning")
        return cls(config, plan, WorkerPool(client, config, plan, blocks), on_worker, claim, blocks)

    def iterate(self, iteration: Iteration) -> None:
        """Have the workers train all buckets, and commit; after an epoch the tasks end."""
        self.metrics.start_iteration(iteration)
        assignment = self._assignment(iteration)
        while not (assignment.finished and self.locations.is_complete()):
            for loss in self.pool.poll():
                self._lose(loss, assignment)
            self._answer(assignment)
            message = self.pool.receive()
            if message is not None:
                self._handle(message, assignment)
        begun = time.monotonic()
        self.claim.check()
        self._checksums |= self.locations.complete()
        self.metrics.arrange(assignment.order)
        self.commit(self.version + 1, self.metrics.lines(), self._checksums)
        self.version += 1
        self.locations.committed()
        self._done.clear()
        self.metrics.end_iteration(wait_s=time.monotonic() - begun, moved=self._moved)
        self._moved.clear()
        if self.version % self.schedule.per_epoch == 0:
            self._idle.clear()
            for task in list(self.pool.tasks.values()):
                self._worker_figures = self.pool.finish(task) or self._worker_figures

    def close(self) -> None:
        """End the workers' tasks; delete temporary files."""
        self.pool.shut_down()
        self.locations.close()

    def own_figures(self) -> dict[str, Any]:
        """The figures of a worker, and the number of workers."""
        return self._worker_figures | {"num_workers": self.settings.num_workers}

    def _assignment(self, iteration: Iteration) -> Assignment:
        if self.blocks is None:
            order = order_of(self.config, iteration)
        else:
            order = self.blocks.order(iteration)
            self._own = {
                visit: frozenset(
                    key for key in self.blocks.keys_of(visit, iteration) if not is_shared(self.config, key)
                )
                for visit in order
            }
        from_one = not self.version and not self.config.init_path
        own = self._own.__getitem__
        if self.settings.bucket_assignment == "dynamic":
            return Dynamic(order, own, from_one=from_one)
        return Tournament(rounds_of(order, own, self.settings.num_workers, from_one=from_one))

    def _handle(self, message: Message, assignment: Assignment) -> None:
        task = self.pool.tasks.get(message["task"])
        if task is None:
            return  # the worker counts as lost
        bucket = task.bucket
        match message["kind"]:
            case "ready":
                self.pool.shards.add(task.address)
                self._idle[task.name] = task
            case "progress" if bucket is not None:
                self.metrics.report(bucket, message["edges"], message["loss"])
            case "lacking" if bucket is not None:
                self._note_lacking(bucket)
                self._give_back(task, assignment)
                self._idle[task.name] = task
            case "trained" if bucket is not None:
                self._lacking_since_s.pop(bucket, None)
                task.visit = Visit(bucket, worker=task.address, **message["visit"])
            case "published" if bucket is not None and task.visit is not None:
                self._done[task.grant] = bucket
                self.locations.publish(task.grant, self._own[bucket], task.holder, task.address)
                self._note_files(message)
                self.metrics.add(task.visit)
                if assignment.commit(bucket):
                    self.pool.shards.end_round()
                task.drop_bucket()
                self._idle[task.name] = task
            case "saved":
                self._note_files(message)
            case "written":
                self._note_files(message)
                self._moved.update(message["moved"])
                if task.writes_shared:
                    self._checksums |= {storage.name(uri): text for uri, text in message["checksums"].items()}
                    self.locations.shared_folder = message["folder"]
                task.writes, task.writes_shared = (), False
                self._idle[task.name] = task

    def _note_files(self, message: Message) -> None:
        for name, partition, saved in message["files"]:
            self.locations.saved((name, partition), SavedFile(*saved))

    def _answer(self, assignment: Assignment) -> None:
        """Send waiting workers a bucket, or have them publish."""
        if assignment.finished:
            self._write_unsaved()
            return
        self._publish(assignment)
        for task in list(self._idle.values()):
            bucket = task.then or assignment.next_bucket(task.held, task.likely)
            if bucket is not None:
                self._grant(task, bucket, assignment)

    def _publish(self, assignment: Assignment) -> None:
        """Have workers publish: at once, or when all that a round can train is trained."""
        waiting = {
            task.bucket: task
            for task in self.pool.tasks.values()
            if task.visit is not None and not task.is_publishing
        }
        group = list(waiting.values())
        if of_round := assignment.publish_group:
            group = [waiting[bucket] for bucket in of_round if bucket in waiting]
            is_incomplete = len(group) < len(of_round) and len(waiting) < len(self.pool.tasks)
            if is_incomplete or any(task.is_publishing for task in self.pool.tasks.values()):
                return
        for task in group:
            task.is_publishing = True
            if task.bucket is not None:
                self.pool.shards.publish(task.bucket, task.grant)
            self.pool.send(task, "publish")

    def _grant(self, task: WorkerTask, bucket: Bucket, assignment: Assignment) -> None:
        """Have a worker train a bucket, and promise it the next one if no other worker is idle."""
        self._idle.pop(task.name, None)
        self._grants += 1
        task.bucket, task.grant, task.then, task.likely = bucket, self._grants, None, None
        task.held = {key: task.held.get(key, self._grants) for key in self._own[bucket]}
        then = None
        if self._promises and not self._idle:
            task.then = assignment.reserve(bucket, task.held)
        if task.then is not None:
            added = self._own[task.then] - self._own[bucket]
            then = {"bucket": list(task.then), "partitions": self._sources(added)}
        elif self._prefetch and (likely := assignment.likely_after(bucket)) is not None:
            then = {"bucket": list(likely), "partitions": []}
            task.likely = likely
        self.pool.send(
            task,
            "train",
            bucket=list(bucket),
            version=self.version,
            grant=self._grants,
            folder=self.locations.folder(self._grants),
            needs_files=assignment.needs_files,
            partitions=self._sources(self._own[bucket]),
            part=assignment.part(bucket, len(self.pool.tasks)),
            then=then,
        )

    def _sources(self, keys: Iterable[PartitionKey]) -> list[Any]:
        return [[*key, list(self.locations.source(key))] for key in sorted(keys)]

    def _write_unsaved(self) -> None:
        """Have idle workers write what is in no file of the next version yet; one, the shared state too."""
        idle = {task.holder: task for task in self._idle.values()}
        if not idle:
            return
        others = cycle(idle.values())
        being_written = {key for task in self.pool.tasks.values() for key in task.writes}
        busy = {task.holder for task in self.pool.tasks.values()} - idle.keys()
        for key, source in list(self.locations.unsaved()):
            if key not in being_written and source.holder not in busy:
                task = idle.get(source.holder) or next(others)
                task.writes += (key,)
        if self.locations.shared_folder is None:
            is_written = any(task.writes_shared for task in self.pool.tasks.values())
            next(others).writes_shared |= not is_written
        for task in idle.values():
            if task.writes or task.writes_shared:
                self._idle.pop(task.name, None)
                self._grants += 1
                self.pool.send(
                    task,
                    "write",
                    version=self.version,
                    folder=self.locations.folder(self._grants),
                    partitions=self._sources(task.writes),
                    shared=task.writes_shared,
                )

    def _lose(self, loss: WorkerLoss, assignment: Assignment) -> None:
        """Have other workers train what the lost worker trained, and what only it had."""
        task = loss.task
        bucket = None if task is None else task.bucket
        if task is not None:
            self._idle.pop(task.name, None)
            self._give_back(task, assignment)
        grants = self.locations.lose(loss.holder) & self._done.keys()
        undone = [self._done.pop(grant) for grant in sorted(grants)]
        for done in undone:
            assignment.give_back(done)
            self.metrics.forget(done)
        if undone:  # they will change the shared state that is in a file, or on its way to one
            self.locations.shared_folder = None
            for other in self.pool.tasks.values():
                other.writes_shared = False
        again = [*([] if bucket is None else [bucket]), *undone]
        text = "training: worker %s was lost; buckets that are trained again: %s"
        log.info(text, loss.address, ", ".join(map(str, again)) or "none")
        if bucket is not None:
            self.losses[bucket] += 1
            if self.losses[bucket] > MAX_LOSSES:
                raise ClusterError(
                    f"training: bucket {bucket} took {self.losses[bucket]} workers down with it, the last on "
                    f"{loss.address}; {shortage.of_killed_workers()}"
                )

    def _note_lacking(self, bucket: Bucket) -> None:
        now = time.monotonic()
        if now - self._lacking_since_s.setdefault(bucket, now) > LACKING_S:
            raise ClusterError(
                f"training: a partition of bucket {bucket} is in no file, and its worker has not answered "
                f"for {LACKING_S:g} s; run it again: it goes on from version {self.version}"
            )

    def _give_back(self, task: WorkerTask, assignment: Assignment) -> None:
        """Let another worker train the task's buckets; the task's work on them is void."""
        for bucket in (task.then, task.bucket):
            if bucket is not None:
                assignment.give_back(bucket)
                self.pool.shards.give_up(bucket)
                self.metrics.forget(bucket)
        task.then = None
        task.drop_bucket()


def _count_blocks(config: Config, schedule: Schedule, worker_bytes: int) -> int:
    """Count, on a worker, the blocks of partitions that memory allows."""
    from graphmill.gpu.device import device_of  # imports torch: only workers need it
    from train.plan.decide import blocks_of_workers
    from train.tables.run_context import RunContext

    context = RunContext(config, schedule, device=device_of(config.num_gpus))
    return blocks_of_workers(context, config.train.num_workers, worker_bytes)


def _own_partitions(config: Config) -> dict[Bucket, frozenset[PartitionKey]]:
    """The partitions of each bucket that no other worker may have while the bucket is trained."""
    sides = {(relation.entity_type(side), side) for relation in config.relations for side in Side}
    moving = [(name, side) for name, side in sorted(sides) if not is_shared(config, (name, 0))]
    return {
        bucket: frozenset(key_of(config, name, side, bucket) for name, side in moving)
        for bucket in all_buckets(config)
    }
