"""A worker's part: one long task that trains bucket after bucket until the coordinator has none left.

    read the bucket's partitions and the shared state, unless their newest revision is in memory
    train
    write the partitions to the grant's folder                     several workers at a time
    wait for the turn; merge with the shared state, and write it   one worker at a time
    report to the coordinator, which makes the files count

A kill at any point costs one bucket: it leaves files that do not count.
"""

import time
from collections.abc import Mapping
from typing import Any

from distributed import get_worker

from graphmill.cluster import num_cores
from graphmill.config import Config
from graphmill.display import progress
from graphmill.vocab import Bucket
from train.config import TrainConfig
from train.distributed.collective import Collective
from train.distributed.messages import WORKER_ATTRIBUTE, Message, WorkerChannel
from train.distributed.shared_state import SharedState
from train.edges.partitions import Location, PartitionKey
from train.edges.schedule import Schedule
from train.plan.decide import decide, device_of
from train.run.bucket import BucketTrainer
from train.run.run_metrics import peak_bytes
from train.step import runtime
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext


def work(config: Config, plan: Schedule, topic: str, task: str, num_on_host: int) -> dict[str, Any]:
    """Run the task, one of `num_on_host` that share this machine's cores; returns figures."""
    runtime.keep_freed_memory()
    attributes = vars(get_worker())
    with runtime.cpu_threads(config.workers or max(1, num_cores() // num_on_host)):
        worker = attributes.pop(WORKER_ATTRIBUTE, None)  # gone if this task fails
        if worker is None or worker.topic != topic:
            worker = Worker(config, plan, topic)
        figures: dict[str, Any] = worker.run(WorkerChannel(topic, task))
        attributes[WORKER_ATTRIBUTE] = worker
        return figures


class Worker:
    """Trains the buckets that the coordinator sends.

    A worker lives as long as the run: the task of the next epoch finds its tables on the device.
    """

    def __init__(self, config: Config, plan: Schedule, topic: str) -> None:
        self.topic = topic
        self.context = RunContext(config, plan, device=device_of(config))
        model, adagrad = self.context.load_model()
        self.plan = decide(self.context, config.section(TrainConfig).num_workers)
        self.plan.announce()
        self.bucket = BucketTrainer(self.context, model, adagrad, self.plan)
        self.files = PartitionFiles(self.context)
        self.shared = SharedState(self.context, model, adagrad)
        self.tables: dict[PartitionKey, Table] = {}
        self.num_read = 0
        self._revisions: dict[PartitionKey, int] = {}  # of the tables
        backend = self.plan.all_reduce
        self.collective = None if backend is None else Collective(backend, self.context.device)

    def run(self, channel: WorkerChannel) -> dict[str, Any]:
        """Train until no bucket is left; returns the plan and the number of parameters."""
        message = channel.ask("ready")
        while message["kind"] == "train":
            message = self._train(message, channel)
        if self.collective is not None:
            self.collective.close()
        num_parameters = self.context.num_parameters(self.shared.model)
        return {"device": self.plan.device, "plan": self.plan.figures(), "num_parameters": num_parameters}

    def _train(self, message: Message, channel: WorkerChannel) -> Message:
        """Train one bucket, write and publish it; returns the coordinator's next message."""
        bucket, grant, folder = Bucket(*message["bucket"]), message["grant"], message["folder"]
        iteration = self.context.schedule.iteration(message["version"])
        version = message["version"] + 1
        progress.work_on("training", epoch=str(iteration.epoch_idx + 1), bucket=f"{bucket.lhs},{bucket.rhs}")
        begun = time.monotonic()
        locations = _locations(message["partitions"])
        read_before = self.num_read
        self._hold(locations)
        self.shared.begin(Location(*message["shared"]))
        edges = self.bucket.read(bucket, iteration)
        wait_s = time.monotonic() - begun
        tables = self.tables | self.shared.tables
        stats = self.bucket.train(bucket, iteration, edges, tables, channel.report_progress)
        begun = time.monotonic()
        self.context.checksums.clear()
        for key in sorted(locations):
            self.files.write(key, self.tables[key], version, iteration, folder)
            self._revisions[key] = grant
        for key, location in _locations(message["untouched"]).items():
            self.files.write(key, self._load(key, location), version, iteration, folder)
        visit = {
            "stats": stats,
            "wait_s": wait_s + time.monotonic() - begun,
            "partitions_read": self.num_read - read_before,
            "partitions_written": len(locations),
            "peak_bytes": peak_bytes(),
        }
        answer = channel.ask("trained", grant=grant, visit=visit)
        if answer["kind"] != "publish":
            return answer  # this bucket goes to another worker
        group = answer["group"]
        if self.collective is not None and group is not None and group["size"] > 1:
            self.shared.reduce(self.collective, group)
        revision = grant if group is None else group["leader"]
        self.shared.merge(Location(*answer["shared"]), revision)
        if revision == grant:
            self.shared.write(folder, version, iteration)
        return channel.ask("published", grant=grant, checksums=dict(self.context.checksums))

    def _hold(self, locations: Mapping[PartitionKey, Location]) -> None:
        """Read the partitions whose newest revision is not in memory; first drop all others."""
        for key in list(self.tables):
            if key not in locations or self._revisions[key] != locations[key].revision:
                del self.tables[key]
        for key in sorted(locations.keys() - self.tables.keys()):
            self.tables[key] = self._load(key, locations[key])
            self._revisions[key] = locations[key].revision
            self.num_read += 1

    def _load(self, key: PartitionKey, location: Location) -> Table:
        return self.files.load(key, location.version, location.path)


def _locations(listed: list[Any]) -> dict[PartitionKey, Location]:
    return {(name, partition): Location(*location) for name, partition, location in listed}
