"""Training on one worker, from the first bucket that is left to the last commit.

    for each iteration left (epoch, edge path, chunk):
        for each bucket, in bucket_order:
            swap partitions; read edges; rank the held-out ones; step through the batches; rank again
        write every partition, the model, the stats; commit

While a bucket is trained, a thread writes what the last one left and reads what the next one needs
(`train.prefetch`). A kill costs the iteration that it interrupts: the next run starts from the last
commit and draws the same numbers, so it ends with the same bytes.
"""

from concurrent.futures import Future
from functools import partial
from typing import Any

from graphmill.config import Config
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from graphmill.vocab import Bucket
from train.config import TrainConfig
from train.edges.batches import EdgeTensors
from train.edges.bucket_order import order_of
from train.evaluation.job import evaluate
from train.plan.decide import decide, device_of
from train.plan.plan import Plan
from train.run.bucket import BucketTrainer
from train.run.resident import ResidentStore, WholeGraph
from train.run.run_metrics import RunMetrics, Visit, peak_bytes
from train.run.validation import Validation
from train.tables.background import Background
from train.tables.device_buffer import DeviceBuffer, order_slots
from train.tables.partition_files import PartitionFiles
from train.tables.partition_store import PartitionStore, Store
from train.tables.run_context import RunContext


class Trainer:
    """One run of training, resumed where its checkpoint ends."""

    def __init__(self, config: Config, claim: Claim = NO_CLAIM) -> None:
        self.config = config
        self.claim = claim
        self.context = RunContext(config, claim=claim, device=device_of(config))
        self.schedule = self.context.schedule
        self.version = self.context.version
        claim.check()
        pbg_checkpoint.delete_uncommitted(config.checkpoint_path)
        self.model, self.adagrad = self.context.load_model()
        self.plan = decide(self.context)
        self.plan.announce()
        trainer = WholeGraph if self.plan.placement == "device" else BucketTrainer
        self.bucket = trainer(self.context, self.model, self.adagrad, self.plan)
        self.prefetch = config.section(TrainConfig).prefetch
        self.background = Background(threaded=self.prefetch)
        # Partitions per type on the device: the order of buckets suits them.
        self.order_slots = order_slots(config, self.plan.slots) if self.plan.slots else None
        self.store = self._store(self.plan)
        self.metrics = RunMetrics(config, self.schedule, self.version)
        self.validation = Validation(config, self.schedule.per_epoch, self.version, self._rank)
        self._edges: dict[Bucket, Future[EdgeTensors]] = {}  # read, or being read
        self._of_config: Checksums = {}

    def run(self) -> dict[str, Any]:
        """Train what is left; the figures of the run."""
        self._of_config = pbg_checkpoint.write_config(self.config.checkpoint_path, self.config.pbg())
        try:
            while self.validation.after(self.version) and self.version < self.schedule.num_iterations:
                self._iterate(self.schedule.iteration(self.version))
            self.claim.check()
            self.version = self.validation.end(self.version)
        finally:
            self.background.close()
        return {
            "first_version": self.context.version,
            "version": self.version,
            "device": self.plan.device,
            "plan": self.plan.figures(),
            "num_parameters": self.context.num_parameters(self.model),
            **self.metrics.figures(),
            **self.validation.figures(),
        }

    def _rank(self, config: Config) -> dict[str, Any]:
        """Evaluate a version, which takes long; what comes of it is then written."""
        found = evaluate(config)
        self.claim.check()
        return found

    def _store(self, plan: Plan) -> Store:
        match plan.placement:
            case "device":
                return ResidentStore(self.context, self.version)
            case "buffer":
                return DeviceBuffer(self.context, self.version, plan.slots)
            case "files":
                return PartitionStore(PartitionFiles(self.context), self.version, self.background)

    def _iterate(self, iteration: Iteration) -> None:
        order = order_of(self.bucket.config, iteration, self.order_slots)
        following = [*order[1:], None] if self.prefetch else [None] * len(order)
        self.metrics.start_iteration(iteration)
        self.store.begin(order)
        for bucket, then in zip(order, following, strict=True):
            self.metrics.add(self._visit(bucket, then, iteration))
        self._commit(iteration)

    def _visit(self, bucket: Bucket, then: Bucket | None, iteration: Iteration) -> Visit:
        """Train on a bucket, while what `then` needs is read."""
        before = self.background.wait_s, self.store.num_read, self.store.num_written
        coming = self._edges_of(bucket, iteration)
        tables = self.store.enter(bucket, then, iteration)
        if then is not None:
            self._edges[then] = self._edges_of(then, iteration)
        edges = self.background.result(coming)
        wait_s = self.background.wait_s - before[0]
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
        return self._edges.pop(bucket, None) or self.background.submit(self.bucket.read, bucket, iteration)

    def _commit(self, iteration: Iteration) -> None:
        config = self.config
        version = self.version + 1
        before = self.background.wait_s, self.store.num_written
        self.store.write_all(iteration)
        self.claim.check()
        pbg_checkpoint.write_model(
            config.checkpoint_path,
            version,
            self.model.state_dict(),
            self.adagrad.state_dict(),
            config.pbg(),
            iteration,
            self.context.checksums,
        )
        pbg_checkpoint.append_stats(config.checkpoint_path, self.metrics.lines())
        self.claim.check()
        pbg_checkpoint.commit(
            config.checkpoint_path,
            version,
            preserve_epoch=self.schedule.preserved_epoch(config, version),
            checksums=self.context.checksums | self._of_config,
        )
        self.context.checksums.clear()
        self.store.committed()
        self.version = version
        self.metrics.end_iteration(
            wait_s=self.background.wait_s - before[0],
            partitions_written=self.store.num_written - before[1],
        )
