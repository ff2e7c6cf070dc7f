"""Workers in virtual time: a pool for the real coordinator, without processes, tensors or waiting."""

import heapq
import random
from itertools import count

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import all_buckets
from graphmill.vocab import Bucket
from train.distributed.coordinator import Coordinator
from train.distributed.messages import PartitionCopies, SavedFile
from train.distributed.worker_pool import WorkerLoss, WorkerTask
from train.edges.schedule import Schedule

NO_FILES = {"files": []}
NO_STATS = {"stats": {"count": 1000, "metrics": {"loss": 1.0, "reg": 0.0}}, "seconds": 1.0}


class NoShards:
    """Relations and types with one partition, which nobody exchanges."""

    def add(self, address):
        pass

    def publish(self, bucket, grant):
        pass

    def give_up(self, bucket):
        pass

    def end_round(self):
        pass


class SimulatedPool:
    """Workers that train, fetch and write in virtual seconds, and may be lost.

    Attributes:
        waited_s: virtual seconds that workers waited for partitions or for a bucket.
        trained_s: virtual seconds that they trained.
        num_published: buckets that they have published, which a file of the shared state notes.
    """

    def __init__(self, num_workers, *, fetch_s=0.3, write_s=0.5, progress_s=None, num_losses=0, seed=0):
        self.tasks, self.topic, self.shards = {}, "simulated", NoShards()
        self.fetch_s, self.write_s, self.progress_s = fetch_s, write_s, progress_s
        self.waited_s = self.trained_s = self.now_s = 0.0
        self.num_published = 0
        self._num_workers, self._num_losses = num_workers, num_losses
        self._random, self._numbers = random.Random(seed), count()
        self._events, self._memory, self._ahead, self._idle_since_s = [], {}, {}, {}
        self._losses = []

    def receive(self):
        if not self._events:
            return None
        self.now_s, _, message = heapq.heappop(self._events)
        for uri in message.pop("write", ()):
            storage.write_text(uri, message.get("text", ""))
        if self._num_losses and self._random.random() < 0.02:
            self._num_losses -= 1
            self._lose(self.tasks[self._random.choice(list(self.tasks))])
        return message

    def poll(self):
        while len(self.tasks) < self._num_workers:
            number = next(self._numbers)
            task = WorkerTask(f"task-{number}", f"tcp://{number}", f"holder-{number}")
            self.tasks[task.name] = task
            self._memory[task.holder], self._ahead[task.name] = set(), set()
            self._say(task, 0.0, "ready")
            self._idle_since_s[task.name] = self.now_s
        lost, self._losses = self._losses, []
        return lost

    def send(self, task, kind, **content):
        getattr(self, f"_{kind}")(task, **content)

    def finish(self, task):
        del self.tasks[task.name]
        return {}

    def shut_down(self):
        self.tasks.clear()

    def _say(self, task, after_s, kind, **content):
        message = {"kind": kind, "task": task.name, **content}
        heapq.heappush(self._events, (self.now_s + after_s, next(self._numbers), message))

    def _lose(self, task):
        del self.tasks[task.name]
        del self._memory[task.holder]
        self._losses.append(WorkerLoss(task.address, task.holder, task))

    def _train(self, task, *, bucket, grant, folder, version, partitions, then, needs_files, part):
        entries = {(name, part): PartitionCopies(*source) for name, part, source in partitions}
        held = self._memory[task.holder]
        wanted = {(key, source.revision): source for key, source in entries.items()}
        if any(self._is_nowhere(entry, source) for entry, source in wanted.items()):
            self._say(task, 1.0, "lacking", grant=grant)
            return
        fetch_s = self.fetch_s * len(wanted.keys() - held - self._ahead[task.name])
        held.difference_update(wanted)
        seconds = self._random.uniform(0.5, 1.5)
        self.waited_s += self.now_s - self._idle_since_s.pop(task.name) + fetch_s
        self.trained_s += seconds
        self._ahead[task.name] = {
            ((name, part), source[0]) for name, part, source in (then or {}).get("partitions", ())
        }
        for at in range(int(seconds / self.progress_s)) if self.progress_s else ():
            self._say(task, at * self.progress_s, "progress", edges=1, loss=1.0)
        for key, revision in sorted(held):  # written behind
            written = _files([key], revision, f"{storage.parent(folder)}/{revision}", version + 1)
            self._say(task, self.write_s, "saved", **written)
        held.clear()
        written = _files(entries, grant, folder, version + 1) if needs_files else NO_FILES
        task.sim = set(entries), grant, written
        moved = {"partitions_read": 0, "partitions_written": 0}
        visit = {"stats": NO_STATS, "wait_s": fetch_s, "peak_bytes": 1, **moved}
        self._say(task, fetch_s + seconds, "trained", grant=grant, visit=visit)

    def _is_nowhere(self, entry, source):
        return source.file is None and entry not in self._memory.get(source.holder, ())

    def _publish(self, task, **_):
        keys, grant, written = task.sim
        self.num_published += 1
        self._memory[task.holder] |= {(key, grant) for key in keys}
        self._idle_since_s[task.name] = self.now_s
        self._say(task, 0.0, "published", grant=grant, **written)

    def _write(self, task, *, version, folder, partitions, shared):
        files, uris = [], [pbg.model_uri(folder, version + 1)] * shared
        for name, part, source in partitions:
            files.append([name, part, list(SavedFile(source[0], folder, version + 1, "sum", True))])
            uris.append(pbg.embeddings_uri(folder, name, part, version + 1))
        content = {"moved": {"partitions_written": len(files)}, "checksums": {}, "folder": folder}
        content["text"] = str(self.num_published)
        self._say(task, self.write_s, "written", files=files, write=uris, **content)


def _files(keys, revision, folder, version):
    """The part of a message that tells of new files of partitions, each with one copy."""
    return {
        "files": [[*key, list(SavedFile(revision, folder, version, "sum", False))] for key in keys],
        "write": [pbg.embeddings_uri(folder, *key, version) for key in keys],
    }


def coordinator_of(config, pool, num_blocks=0):
    """A coordinator of simulated workers, whose buckets have 1000 edges each."""
    num_edges = {(0, bucket): 1000 for bucket in all_buckets(config)}
    schedule = Schedule(config.num_epochs, config.edge_paths, 1, num_edges)
    return Coordinator(config, schedule, pool, lambda _: {}, num_blocks=num_blocks)


def lines_of(config):
    """Buckets of training_stats.json, by epoch."""
    found = {}
    for line in pbg.read_stats(config.checkpoint_path):
        bucket = Bucket(line["lhs_partition"], line["rhs_partition"])
        found.setdefault(line["epoch_idx"], []).append(bucket)
    return found
