"""A worker's part: one long task that trains bucket after bucket until the coordinator has none left.

    read the bucket's partitions, unless they are here in their newest revision; what is shared likewise
    train
    write the partitions to the grant's folder                      several workers at a time
    wait for the turn; merge with what is shared, write it as well  one worker at a time
    tell the coordinator, which makes all of it count

A kill at any point leaves files that do not count: it costs the bucket.
"""

import time
from collections.abc import Mapping
from typing import Any

from distributed import get_worker

from graphmill.cluster import num_cores
from graphmill.config import Config
from graphmill.vocab import Bucket
from train.config import TrainConfig
from train.edges.schedule import Key, Schedule, all_keys, is_shared
from train.run.bucket import BucketTrainer
from train.run.decide import decide
from train.run.run_metrics import peak_bytes
from train.spread.collective import Collective
from train.spread.messages import KEPT, Message, WorkerEnd
from train.spread.places import Place
from train.spread.shared import Shared
from train.step import runtime
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.start import Start


def work(config: Config, plan: Schedule, topic: str, attempt: str, num_neighbours: int) -> dict[str, Any]:
    """The task; `num_neighbours` such tasks share the cores of this machine. Tells what it trained on."""
    runtime.keep_freed_memory()
    local = vars(get_worker())
    with runtime.cpu_threads(config.workers or max(1, num_cores() // num_neighbours)):
        kept = local.pop(KEPT, None)  # gone if this task fails
        worker = kept if kept is not None and kept.topic == topic else Worker(config, plan, topic)
        told = worker.run(WorkerEnd(topic, attempt))
        local[KEPT] = worker
        return told


class Worker:
    """Trains the buckets that it is told to.

    Lives as long as the run: an epoch's task finds here, and on the device, what the last one has left.
    """

    def __init__(self, config: Config, plan: Schedule, topic: str) -> None:
        self.config = config
        self.topic = topic
        self.start = Start(config, plan)
        model, adagrad = self.start.load_model()
        self.plan = decide(self.start, config.section("train", TrainConfig).num_workers)
        self.plan.announce()
        self.bucket = BucketTrainer(self.start, model, adagrad, self.plan)
        self.files = PartitionFiles(self.start)
        shared_keys = [key for key in all_keys(config) if is_shared(config, key)]
        self.shared = Shared(self.start, model, adagrad, self.files, shared_keys)
        self._tables: dict[Key, Table] = {}
        self._revisions: dict[Key, int] = {}
        self._num_parameters = self.start.num_parameters(model)
        backend = self.plan.all_reduce
        self.collective = None if backend is None else Collective(backend, self.start.device)

    def run(self, line: WorkerEnd) -> dict[str, Any]:
        """Train until there is nothing left; the device and the number of parameters."""
        self.line = line
        order = self.line.ask("ready")
        while order["kind"] == "train":
            order = self._train(order)
        if self.collective is not None:
            self.collective.close()
        figures = {"device": self.plan.device, "plan": self.plan.figures()}
        return figures | {"num_parameters": self._num_parameters}

    def _train(self, order: Message) -> Message:
        """Train one bucket; the next order."""
        bucket = Bucket(*order["bucket"])
        iteration = self.start.schedule.iteration(order["version"])
        folder, version = order["folder"], order["version"] + 1
        begun = time.monotonic()
        places = _places(order["partitions"])
        num_read = self._swap(places)
        self.shared.begin(Place(*order["shared"]))
        for key in places:
            del self._revisions[key]  # a bucket that is not finished leaves nothing to go on from
        edges = self.bucket.read(bucket, iteration)
        wait_s = time.monotonic() - begun
        tables = self._tables | self.shared.tables
        stats = self.bucket.train(bucket, iteration, edges, tables, self.line.tell_progress)
        begun = time.monotonic()
        self.start.checksums.clear()
        for key in sorted(places):
            self.files.write(key, self._tables[key], version, iteration, folder)
            self._revisions[key] = order["grant"]
        for key, place in _places(order["untouched"]).items():
            self.files.write(key, self.files.load(key, place.version, place.path), version, iteration, folder)
        visit = {
            "stats": stats,
            "wait_s": wait_s + time.monotonic() - begun,
            "partitions_read": num_read,
            "partitions_written": len(places),
            "peak_bytes": peak_bytes(),
        }
        answer = self.line.ask("trained", grant=order["grant"], visit=visit)
        if answer["kind"] != "publish":
            return answer  # this bucket is let go for another one
        together, revision = answer["together"], order["grant"]
        if self.collective is not None and together is not None:
            if together["size"] > 1:
                self.shared.reduce(self.collective, together)
            revision = together["leader"]
        place, writes = Place(*answer["shared"]), revision == order["grant"]
        self.shared.publish(place, folder, version, revision, iteration, writes=writes)
        return self.line.ask("published", grant=order["grant"], checksums=dict(self.start.checksums))

    def _swap(self, places: Mapping[Key, Place]) -> int:
        """Have the partitions at `places` in memory, and no others; how many had to be read."""
        for key in self._tables.keys() - places.keys():
            del self._tables[key]
            self._revisions.pop(key, None)
        stale = [key for key, place in places.items() if self._revisions.get(key) != place.revision]
        for key in sorted(stale):
            self._tables.pop(key, None)
            self._tables[key] = self.files.load(key, places[key].version, places[key].path)
            self._revisions[key] = places[key].revision
        return len(stale)


def _places(listed: list[Any]) -> dict[Key, Place]:
    return {(name, partition): Place(*place) for name, partition, place in listed}
