"""A worker's part: one long task that trains bucket after bucket until the coordinator has none left.

Its parts: docs/explanation/distributed_training.md.
A kill at any point costs the bucket, and those before it whose partitions nobody else and no file has.
"""

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from distributed import get_worker

from graphmill import storage
from graphmill.checkpoints.pbg import Iteration
from graphmill.cluster import num_cores, runtime
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.display import progress
from graphmill.gpu.device import device_of
from graphmill.storage import Checksums
from graphmill.vocab import Bucket
from train.distributed.messages import Message, PartitionCopies, SavedFile, WorkerChannel
from train.distributed.partition_exchange import ONE_COPY, PartitionExchange, PartitionLostError
from train.distributed.partition_holder import PartitionHolder
from train.distributed.shards import ShardServer
from train.distributed.shared_state import SharedState
from train.edges.batches import EdgeTensors
from train.plan.decide import decide
from train.run.bucket import BucketTrainer
from train.run.run_metrics import peak_bytes
from train.step.step import Table, joined
from train.tables import memory
from train.tables.background import Background
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext

LACKING_S = 1.0  # before a worker tells that a partition is nowhere: its loss will be noticed meanwhile

Visited = tuple[Bucket, Iteration]

log = logging.getLogger("graphmill")


def work(
    config: Config, holder_key: str, shards_key: str, topic: str, task: str, num_on_host: int
) -> dict[str, Any]:
    """Run the task, one of `num_on_host` that share this machine's cores; returns figures."""
    runtime.keep_freed_memory()
    actors = get_worker().state.actors
    holder: PartitionHolder = actors[holder_key]
    channel = WorkerChannel(topic, task, config.train.num_workers)
    with runtime.cpu_threads(config.workers or max(1, num_cores() // num_on_host)):
        worker = holder.worker or TrainingWorker(config, holder, actors[shards_key], num_on_host)
        holder.worker = None  # gone if this task fails
        figures: dict[str, Any] = worker.run(channel)
        holder.worker = worker
        return figures


class TrainingWorker:
    """Trains the buckets that the coordinator sends.

    A worker lives as long as the run: the task of the next epoch finds its partitions in memory.
    """

    def __init__(
        self, config: Config, holder: PartitionHolder, shards: ShardServer, num_on_host: int
    ) -> None:
        self.context = RunContext(config, holder.schedule, device=device_of(config.num_gpus))
        model, adagrad = self.context.load_model()
        num_workers = config.train.num_workers
        self.plan = decide(self.context, num_workers, blocks_of_all=holder.num_blocks)
        self.plan.announce()
        self.bucket = BucketTrainer(self.context, model, adagrad, self.plan)
        self.blocks = self.bucket.blocks
        self.shared = SharedState(self.context, model, adagrad, self.plan, shards)
        self.holder = holder
        budget_bytes = config.train.exchange_bytes
        if budget_bytes is None:
            limit_bytes = get_worker().memory_manager.memory_limit or memory.host_free_bytes() // num_on_host
            budget_bytes = memory.resting_bytes(self.context, limit_bytes, self.plan.blocks)
        self.budget_bytes = budget_bytes  # for resting partitions
        self._edges: tuple[Visited, Future[EdgeTensors]] | None = None  # of the bucket that follows

    def run(self, channel: WorkerChannel) -> dict[str, Any]:
        """Train until no bucket is left; returns the plan and the number of parameters."""
        files = PartitionFiles(self.context)
        self.channel = channel
        self.exchange = PartitionExchange(
            files,
            self.holder,
            get_worker(),
            lambda key, saved: channel.send("saved", files=_listed([(key, saved)])),
            self.budget_bytes,
        )
        self._ahead = Background()
        try:
            message = channel.ask("ready")
            while message["kind"] != "finished":
                message = self._write(message) if message["kind"] == "write" else self._train(message)
        finally:
            self._ahead.close()
            self.exchange.close()
        return self.bucket.figures()

    def _train(self, message: Message) -> Message:
        """Train one bucket and publish it; returns the coordinator's next message."""
        bucket, grant, folder = Bucket(*message["bucket"]), message["grant"], message["folder"]
        version = message["version"] + 1
        iteration = self.context.schedule.iteration(message["version"])
        progress.work_on("training", epoch=str(iteration.epoch_idx + 1), bucket=f"{bucket.lhs},{bucket.rhs}")
        begun = time.monotonic()
        try:
            own = self.exchange.take(_sources(message["partitions"]))
        except PartitionLostError as error:
            log.info("training: bucket %s waits: %s", bucket, error)
            time.sleep(LACKING_S)
            return self.channel.ask("lacking", grant=grant)
        self.shared.begin()
        ahead, self._edges = self._edges, None
        if ahead is not None and ahead[0] == (bucket, iteration):
            edges = self._ahead.result(ahead[1])
        else:
            edges = self.bucket.reader.read(bucket, iteration)
        self._begin_moving(message, iteration)
        tables = self._joined(own, bucket, iteration) | self.shared.tables
        wait_s = time.monotonic() - begun
        self.bucket.part = tuple(message["part"])
        with self.shared.exchanging():
            stats = self.bucket.train(bucket, iteration, edges, tables, self.channel.report_progress)
        begun = time.monotonic()
        del tables
        if self.blocks is not None:  # a partition goes where others do not
            own = {key: table.copied() for key, table in own.items()}
        self.exchange.put(own, grant, folder, version)
        files: list[Any] = []
        if message["needs_files"]:
            sources = dict.fromkeys(own, PartitionCopies(grant))
            saved = self.exchange.save(sources, folder, version, replication=ONE_COPY)
            files = _listed(saved)
        wait_s += time.monotonic() - begun
        visit = {
            "stats": stats,
            "wait_s": wait_s,
            "peak_bytes": peak_bytes(),
            **self.exchange.moved(),
            **self.shared.moved(),
        }
        answer = self.channel.ask("trained", grant=grant, visit=visit)
        if answer["kind"] != "publish":
            for key in own:  # this bucket goes to another worker
                self.holder.take((key, grant))
            return answer
        self.shared.push(grant)
        return self.channel.ask("published", grant=grant, files=files)

    def _joined(
        self, own: dict[PartitionKey, Table], bucket: Bucket, iteration: Iteration
    ) -> dict[PartitionKey, Table]:
        """The tables for the steps: with blocks, one of each type, which has the partitions of `own`."""
        if self.blocks is None:
            return dict(own)
        keys = self.blocks.keys_of(bucket, iteration)
        return joined(own, [key for key in keys if key in own])

    def _begin_moving(self, message: Message, iteration: Iteration) -> None:
        """Begin to read what the following bucket adds, and to write what the last one left."""
        if (then := message["then"]) is not None:
            bucket = Bucket(*then["bucket"])
            self.exchange.read_ahead(_sources(then["partitions"]))
            self._edges = (bucket, iteration), self._ahead.submit(self.bucket.reader.read, bucket, iteration)
        self.exchange.write_behind(message["version"])

    def _write(self, message: Message) -> Message:
        """Write partitions and the shared state for the commit; returns the coordinator's next message."""
        sources, folder = _sources(message["partitions"]), message["folder"]
        files: list[Any] = []
        try:
            files = _listed(self.exchange.save(sources, folder, message["version"] + 1))
        except PartitionLostError as error:
            log.info("training: the commit waits: %s", error)
            time.sleep(LACKING_S)
        checksums: Checksums = {}
        if message["shared"]:
            self.shared.write(folder, message["version"] + 1)
            written = self.context.checksums
            checksums = {uri: written.pop(uri) for uri in list(written) if storage.parent(uri) == folder}
        moved = self.exchange.moved() | self.shared.moved()
        return self.channel.ask("written", files=files, checksums=checksums, folder=folder, moved=moved)


def _sources(listed: Iterable[Any]) -> dict[PartitionKey, PartitionCopies]:
    return {
        (name, partition): PartitionCopies(revision, holder, address, file and SavedFile(*file))
        for name, partition, (revision, holder, address, file) in listed
    }


def _listed(saved: Iterable[tuple[PartitionKey, SavedFile]]) -> list[Any]:
    return [[*key, list(file)] for key, file in saved]
