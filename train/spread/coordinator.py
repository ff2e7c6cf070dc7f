"""The client's part of training over several workers: it only coordinates.

    for each epoch: a long task on each worker
        for each iteration of it:
            until all buckets are done: answer the workers, notice those that were lost, start new ones
            rename the newest files to be the next version; write the stats; commit

A worker that is lost costs the bucket that it was training, which another one trains from the files that
the last bucket of these partitions left. When Dask brings a worker back, it gets a task. If everything is
killed, the next run starts from the last commit.
"""

import logging
import time
import uuid
from collections import Counter
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
from train.edges import schedule
from train.edges.bucket_order import order_of
from train.edges.schedule import Key, all_keys, is_shared, keys_of
from train.run.plan import all_reduce_of
from train.run.run_metrics import Visit, Watch
from train.run.validation import Validation
from train.spread.assignment import Assignment, Dynamic, Tournament, rounds_of
from train.spread.crew import LOOK_S, Attempt, Crew
from train.spread.messages import CoordinatorEnd, Message, Together
from train.spread.places import Places

MAX_LOSSES = 3  # of workers by one bucket

log = logging.getLogger("graphmill")


class Coordinator:
    """One run of training over several workers, resumed where its checkpoint ends."""

    def __init__(self, config: Config, client: Client, claim: Claim = NO_CLAIM) -> None:
        self.config = config
        self.claim = claim
        self.settings = config.section("train", TrainConfig)
        self.backend = all_reduce_of(config)
        self.client = client
        self.schedule = schedule.plan(config)
        self.first_version = self.version = pbg_checkpoint.read_version(config.checkpoint_path)
        pbg_checkpoint.delete_uncommitted(config.checkpoint_path)
        self.places = Places(config.checkpoint_path, self.version)
        self.watch = Watch(config, self.schedule, self.version)
        self.validation = Validation(config, self.schedule.per_epoch, self.version, self._rank)
        self.line = CoordinatorEnd(client, f"graphmill-train-{uuid.uuid4().hex[:12]}")
        self.crew = Crew(client, self.line, self.settings.num_workers, config, self.schedule)
        self.shared_keys = [key for key in all_keys(config) if is_shared(config, key)]
        self._untouched: list[Key] = []  # partitions that no bucket needs, to be copied to the next version
        self._grants = 0
        self._losses: Counter[Bucket] = Counter()
        self._base = self.places.shared  # that buckets start from
        self._checksums: Checksums = {}  # of the next version's files, by name
        self._of_config: Checksums = {}
        self._told: dict[str, Any] = {}
        self._members: list[str] = []  # the last that reduced together, and the name of their group
        self._group = ""

    def run(self) -> dict[str, Any]:
        """Train what is left; the figures of the run."""
        self._of_config = pbg_checkpoint.write_config(self.config.checkpoint_path, self.config.pbg())
        with self.line.listening():
            try:
                while self.validation.after(self.version) and self.version < self.schedule.num_iterations:
                    self._run_epoch()
                self.claim.check()
                self.version = self.validation.end(self.version)
            finally:
                self.crew.cancel()
                self.crew.release()
        figures = {"first_version": self.first_version, "version": self.version, **self._told}
        figures |= {"num_workers": self.settings.num_workers} | self.watch.figures()
        return figures | self.validation.figures()

    def _rank(self, config: Config) -> dict[str, Any]:
        """Evaluate a version, on a worker."""
        found: dict[str, Any] = cluster.run_task(self.client, _evaluate, config, description="evaluate")
        self.claim.check()
        return found

    def _run_epoch(self) -> None:
        last = self.version - self.version % self.schedule.per_epoch + self.schedule.per_epoch
        while self.version < last:
            self._iterate(self.schedule.iteration(self.version))
        for attempt in list(self.crew.attempts.values()):
            self._told = self.crew.dismiss(attempt) or self._told

    def _iterate(self, iteration: Iteration) -> None:
        self.watch.start_iteration(iteration)
        assignment = self._assigned(iteration)
        used = {key for bucket in order_of(self.config, iteration) for key in keys_of(self.config, bucket)}
        self._untouched = [each for each in all_keys(self.config) if each not in {*used, *self.shared_keys}]
        self._base = self.places.shared
        while not assignment.finished:
            for attempt in self.crew.look(employ=True):
                self._lose(attempt, assignment)
            self._answer(assignment)
            message = self.line.receive(LOOK_S)
            if message is not None:
                self._handle(message, assignment)
        self._commit(iteration)

    def _assigned(self, iteration: Iteration) -> Assignment:
        order = order_of(self.config, iteration)
        from_one = not self.version and not self.config.init_path
        if self.settings.bucket_assignment == "dynamic":
            return Dynamic(order, self._own_keys, from_one=from_one)
        size = self.settings.num_workers
        return Tournament(rounds_of(order, self._own_keys, size, from_one=from_one))

    def _own_keys(self, bucket: Bucket) -> set[Key]:
        """The partitions that nobody else may have while the bucket is trained."""
        return {key for key in keys_of(self.config, bucket) if not is_shared(self.config, key)}

    def _handle(self, message: Message, assignment: Assignment) -> None:
        attempt = self.crew.attempts.get(message["attempt"])
        if attempt is None:
            return  # of a worker that counts as lost
        bucket = attempt.bucket
        match message["kind"]:
            case "ready":
                attempt.wants = "bucket"
            case "progress" if bucket is not None:
                self.watch.tell(bucket, message["edges"], message["loss"])
            case "trained" if bucket is not None:
                attempt.visit = Visit(bucket, worker=attempt.address, **message["visit"])
                attempt.wants = "turn"
            case "published" if bucket is not None and attempt.visit is not None:
                keys = [*self._own_keys(bucket), *attempt.untouched]
                self.places.publish(attempt.grant, keys, shares=attempt.leader == attempt.grant)
                written = message["checksums"]
                self._checksums |= {storage.name(uri): written[uri] for uri in written}
                self.watch.add(attempt.visit)
                if assignment.commit(bucket):
                    self._base = self.places.shared
                attempt.last, attempt.bucket, attempt.visit = bucket, None, None
                attempt.wants, attempt.publishing, attempt.base = "bucket", False, None
                attempt.untouched = ()
                in_use = {each.base for each in self.crew.attempts.values() if each.base is not None}
                self.places.forget_shared(self.shared_keys, in_use | {self._base})

    def _answer(self, assignment: Assignment) -> None:
        """Give those that wait what there is for them."""
        if self.backend is not None:
            self._publish_together(assignment)
        for attempt in self.crew.attempts.values():
            if attempt.wants == "turn" and attempt.bucket is not None:
                publishing = any(each.publishing for each in self.crew.attempts.values())
                if not publishing and self.backend is None and assignment.may_publish(attempt.bucket):
                    self._publish(attempt, None)
            elif attempt.wants == "bucket" and self._may_begin(assignment):
                bucket = assignment.next_bucket(attempt.last)
                if bucket is not None:
                    self._grant(attempt, bucket)
        stuck = self.backend is None and all(each.wants == "turn" for each in self.crew.attempts.values())
        if stuck and self.crew.attempts and (bucket := assignment.next_bucket(None)) is not None:
            # All wait for the turn of a bucket whose worker was lost: one lets its own bucket go for it.
            attempt = next(iter(self.crew.attempts.values()))
            self._return(attempt, assignment)
            self._grant(attempt, bucket)

    def _may_begin(self, assignment: Assignment) -> bool:
        """Whether to hand out buckets: where rounds reduce, those of a new one in the order of the workers.

        So that the members of a group, and the order in which it adds up, are the same every time.
        """
        attempts = self.crew.attempts.values()
        begun = any(each.bucket in assignment.together for each in attempts)
        return self.backend is None or begun or all(each.wants == "bucket" for each in attempts)

    def _publish_together(self, assignment: Assignment) -> None:
        """Let a round reduce when all of it is trained or, a worker being lost, all that can be at once."""
        attempts = self.crew.attempts.values()
        waiting = {each.bucket: each for each in attempts if each.wants == "turn"}
        group = [waiting[bucket] for bucket in assignment.together if bucket in waiting]
        is_whole = len(group) == len(assignment.together) or len(waiting) == len(attempts)
        if not group or not is_whole or any(each.publishing for each in attempts):
            return
        members = [each.name for each in group]
        if len(group) > 1 and members != self._members:
            self._members, self._group = members, f"{self.line.topic}-{group[0].grant}"
        for rank, attempt in enumerate(group):
            self._publish(
                attempt, Together(name=self._group, rank=rank, size=len(group), leader=group[0].grant)
            )

    def _publish(self, attempt: Attempt, together: Together | None) -> None:
        attempt.wants, attempt.publishing = None, True
        attempt.leader = attempt.grant if together is None else together["leader"]
        self.line.send(attempt.name, "publish", shared=list(self.places.shared), together=together)

    def _grant(self, attempt: Attempt, bucket: Bucket) -> None:
        self._grants += 1
        attempt.bucket, attempt.grant, attempt.wants = bucket, self._grants, None
        attempt.base = self._base
        attempt.untouched, self._untouched = tuple(self._untouched), []
        self.line.send(
            attempt.name,
            "train",
            bucket=list(bucket),
            version=self.version,
            grant=self._grants,
            folder=self.places.folder(self._grants),
            shared=list(self._base),
            partitions=[[*key, list(self.places.of(key))] for key in sorted(self._own_keys(bucket))],
            untouched=[[*key, list(self.places.of(key))] for key in attempt.untouched],
        )

    def _lose(self, attempt: Attempt, assignment: Assignment) -> None:
        bucket = attempt.bucket
        if bucket is None:
            log.info("training: worker %s was lost", attempt.address)
            return
        if attempt.publishing and self.backend is not None:
            raise ClusterError(
                f"training: worker {attempt.address} was lost in an all-reduce; run it again: it goes on "
                f"from version {self.version}. train.all_reduce: files survives lost workers"
            )
        log.info("training: worker %s was lost, bucket %s is trained again", attempt.address, bucket)
        self._return(attempt, assignment)
        self._losses[bucket] += 1
        if self._losses[bucket] > MAX_LOSSES:
            raise ClusterError(
                f"training: bucket {bucket} took {self._losses[bucket]} workers down with it, the last on "
                f"{attempt.address}; a worker that exceeds its memory limit is killed: see "
                "cluster.worker_memory"
            )

    def _return(self, attempt: Attempt, assignment: Assignment) -> None:
        """What the attempt has done on its bucket is void."""
        if attempt.bucket is not None:
            assignment.give_back(attempt.bucket)
            self.watch.forget(attempt.bucket)
        self._untouched += attempt.untouched
        attempt.bucket = attempt.visit = attempt.base = None
        attempt.untouched = ()

    def _commit(self, iteration: Iteration) -> None:
        begun = time.monotonic()
        config, version = self.config, self.version + 1
        self.claim.check()
        self.places.complete(self.shared_keys)
        pbg_checkpoint.append_stats(config.checkpoint_path, self.watch.lines())
        preserved = self.schedule.preserved_epoch(config, version)
        self.claim.check()
        pbg_checkpoint.commit(
            config.checkpoint_path,
            version,
            preserve_epoch=preserved,
            checksums=self._checksums | self._of_config,
        )
        self._checksums = {}
        self.places.committed()
        self.version = version
        self.watch.end_iteration(wait_s=time.monotonic() - begun)


def _evaluate(config: Config) -> dict[str, Any]:
    from train.evaluation.evaluate import evaluate  # torch is for the worker

    return evaluate(config)
