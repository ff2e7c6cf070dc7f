"""Training on one worker, from the first bucket that is left to the last commit.

    for each iteration left (epoch, edge path, chunk):
        for each bucket, in bucket_order:
            swap partitions; read edges; rank the held-out ones; step through the batches; rank again
        write every partition, the model, the stats; commit: short iterations share a commit

While a bucket is trained, a thread writes what the last one left and reads what the next one needs
(`train.prefetch`). Where all rows stay in memory, and a copy of them, another thread writes and commits a
version while the next iteration trains; the end of that iteration waits for it. A kill costs the iteration
that it interrupts, and the version on its way: the next run starts from the last commit and draws the same
numbers, so it ends with the same bytes.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from graphmill.ask.evaluate.evaluate import evaluate
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.gpu.device import device_of
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.vocab import Bucket
from train.edges.batches import EdgeTensors
from train.edges.visits import order_of
from train.plan.decide import decide
from train.run.bucket import BucketTrainer
from train.run.run_metrics import Visit, peak_bytes
from train.run.training_run import TrainingRun
from train.tables.background import Background
from train.tables.device_buffer import DeviceBuffer, order_slots
from train.tables.partition_store import BlockStore, PartitionStore, ResidentStore, Store
from train.tables.run_context import ModelStates, RunContext, copied_states


class Trainer(TrainingRun):
    """A run of training on one worker."""

    def __init__(self, config: Config, claim: Claim = NO_CLAIM) -> None:
        self.context = RunContext(config, claim=claim, device=device_of(config.num_gpus))
        self.model, self.adagrad = self.context.load_model()
        self.plan = decide(self.context)
        self.plan.announce()
        super().__init__(config, self.context.schedule, self.context.version, claim, evaluate)
        self.bucket = BucketTrainer(self.context, self.model, self.adagrad, self.plan)
        self.blocks = self.bucket.blocks
        self.background, self.committing = Background(), Background("commit")
        # Partitions per type on the device: the order of buckets suits them.
        self.order_slots = order_slots(config, self.plan.slots) if self.plan.slots else None
        self.store = self._store()
        self._edges: dict[Bucket, Future[EdgeTensors]] = {}  # read, or being read
        self._num_done = self._num_edges = 0  # edges of the iteration
        self._pending: Future[None] | None = None  # of the version that is on its way
        self._lines: list[dict[str, Any]] = []  # of training_stats.json, since the last commit
        self._committed_s = time.monotonic()

    def iterate(self, iteration: Iteration) -> None:
        """Train on the buckets one after the other, and begin to write and commit the version."""
        if self.blocks is None:
            order = order_of(self.config, iteration, self.order_slots)
        else:
            order = self.blocks.order(iteration)
        following = [*order[1:], None] if self.plan.prefetch else [None] * len(order)
        self.metrics.start_iteration(iteration)
        self.store.begin(order, iteration)
        self._num_done, self._num_edges = 0, max(1, self.schedule.num_edges_of(self.version))
        for bucket, then in zip(order, following, strict=True):
            self.metrics.add(self._visit(bucket, then, iteration))
            if self._pending is not None and self._pending.done():
                self.wait_for_commit()  # an error ends the run early
        before = self._wait_s, self.store.num_written
        self._lines += self.metrics.lines()
        version = self.version + 1
        if self._is_committed(version):
            self._begin_commit(version)
        self.version = version
        moved = {"partitions_written": self.store.num_written - before[1]}
        self.metrics.end_iteration(wait_s=self._wait_s - before[0], moved=moved)

    def wait_for_commit(self) -> None:
        """Wait until the version is committed; raises the error of a write."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.committing.result(pending)

    def close(self) -> None:
        """End the threads that read and write; a version on its way is committed."""
        self.committing.close(cancel=False)
        self.background.close()

    def own_figures(self) -> dict[str, Any]:
        """The plan and the size of the model."""
        return self.bucket.figures()

    def _is_committed(self, version: int) -> bool:
        """Commit every version; of rows in memory not those within `train.commit_interval_s`."""
        return (
            not self.store.is_in_memory
            or version == self.schedule.num_iterations
            or self.validation.is_due(version)
            or self.schedule.preserved_epoch(self.config, version) is not None
            or time.monotonic() >= self._committed_s + self.context.config.train.commit_interval_s
        )

    def _begin_commit(self, version: int) -> None:
        self.wait_for_commit()
        files = self.store.write_all(self.committing)
        states, lines = copied_states(self.model, self.adagrad), self._lines
        self._lines, self._committed_s = [], time.monotonic()
        self._pending = self.committing.submit(self._end_version, files, states, lines, version)
        if not self.store.writes_beside:
            self.wait_for_commit()
        self.store.end_version()

    def _end_version(
        self, files: Sequence[Future[None]], states: ModelStates, lines: list[dict[str, Any]], version: int
    ) -> None:
        """Write the model after the files of the rows, and commit."""
        for file in files:
            file.result()  # done: tasks run in their order
        self.claim.check()
        self.context.write_model(states, version)
        self.commit(version, lines, self.context.checksums)

    @property
    def _wait_s(self) -> float:
        return self.background.wait_s + self.committing.wait_s

    def _store(self) -> Store:
        if self.plan.placement == "buffer":
            return DeviceBuffer(self.context, self.plan.slots)
        if self.blocks is None:
            return PartitionStore(self.context, self.background)
        if self.plan.placement == "device":
            return ResidentStore(self.context, writes_beside=self.plan.writes_beside)
        return BlockStore(self.context, self.blocks, self.background)

    def _visit(self, bucket: Bucket, then: Bucket | None, iteration: Iteration) -> Visit:
        """Train on a bucket, while what `then` needs is read."""
        before = self._wait_s, self.store.num_read, self.store.num_written
        coming = self._edges_of(bucket, iteration)
        tables = self.store.enter(bucket, then)
        if then is not None:
            self._edges[then] = self._edges_of(then, iteration)
        edges = self.background.result(coming)
        wait_s = self._wait_s - before[0]
        begun, self._num_done = self._num_done, self._num_done + edges.num_trained
        self.bucket.part = begun / self._num_edges, self._num_done / self._num_edges
        stats = self.bucket.train(bucket, iteration, edges, tables, partial(self.metrics.report, bucket))
        return Visit(
            bucket,
            stats,
            wait_s=wait_s,
            partitions_read=self.store.num_read - before[1],
            partitions_written=self.store.num_written - before[2],
            peak_bytes=peak_bytes(),
        )

    def _edges_of(self, bucket: Bucket, iteration: Iteration) -> Future[EdgeTensors]:
        return self._edges.pop(bucket, None) or self.background.submit(
            self.bucket.reader.read, bucket, iteration
        )
