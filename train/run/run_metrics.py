"""Metrics of a run, by bucket and epoch: for the display, training_stats.json and run.json.

`epochs` under stages.train of run.json: docs/reference/run_json.md. Epochs of an earlier run of the same
checkpoint come from training_stats.json, which has no seconds; old ones have no `buckets` in run.json, so
that there are at most MAX_BUCKETS entries.
"""

import importlib.util
import logging
import resource
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import ConfigError
from graphmill.storage import run_folder
from graphmill.vocab import Bucket
from train.edges.schedule import Schedule

MAX_BUCKETS = 2000
LOSS_NOISE = 0.05

# Figures of what a bucket moves.
PARTITIONS = ("partitions_read", "partitions_written")
BYTES = ("fetched_bytes", "read_bytes", "written_bytes", "shared_bytes")

Entry = dict[str, Any]

log = logging.getLogger("graphmill")


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Visit:
    """The result of training on a bucket; only several workers count bytes, maybe of earlier buckets."""

    bucket: Bucket
    stats: Mapping[str, Any]  # `stats`, `eval_stats_before`, `..._after` of training_stats.json; `seconds`
    wait_s: float  # that the worker waited for partitions and edges
    partitions_read: int
    partitions_written: int
    peak_bytes: int
    worker: str | None = None
    fetched_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    shared_bytes: int = 0

    @property
    def num_edges(self) -> int:
        """Edges trained on."""
        return int(self.stats["stats"]["count"])

    def entry(self) -> Entry:
        """The bucket's entry in run.json."""
        seconds = {"seconds": round(self.stats["seconds"], 3), "wait_s": round(self.wait_s, 3)}
        worker: Entry = {}
        if self.worker is not None:
            worker = {"worker": self.worker} | {name: getattr(self, name) for name in BYTES}
        return {"lhs": self.bucket.lhs, "rhs": self.bucket.rhs, **_means([self.stats]), **seconds, **worker}


class RunMetrics:
    """Collects the visits of a run, and shows its progress."""

    def __init__(self, config: Config, schedule: Schedule, version: int) -> None:
        self.schedule, self.version = schedule, version
        self.total_edges = sum(schedule.num_edges_of(i) for i in range(version, schedule.num_iterations))
        self.num_edges = 0
        self.step_s = 0.0
        self._start_s = self._epoch_start_s = time.monotonic()
        self._epochs = _earlier(config, schedule, version)
        self._epoch: list[Visit] = []  # of this run only, where an epoch is resumed midway
        self._iteration: dict[Bucket, Visit] = {}  # in the order of training
        self._done_edges, self._done_loss = 0, 0.0  # of the iteration's visits
        self._current: Iteration
        self._reported: dict[Bucket, tuple[int, float]] = {}
        self._wait_s = self._visit_s = 0.0  # of all finished visits
        self._commit_wait_s = 0.0
        self._commit_moved: Counter[str] = Counter()
        self._curves = Curves(config) if config.train.tensorboard else None

    def start_iteration(self, iteration: Iteration) -> None:
        """Begin an iteration."""
        self._current, self._iteration = iteration, {}
        self._done_edges, self._done_loss = 0, 0.0
        if not self._epoch:
            self._epoch_start_s, self._commit_wait_s = time.monotonic(), 0.0
            self._commit_moved.clear()

    def report(self, bucket: Bucket, num_edges: int, loss: float) -> None:
        """Show progress in a bucket: `num_edges` of its edges are done; `loss` is the sum of their losses."""
        self._reported[bucket] = num_edges, loss
        done, lost = self._done_edges, self._done_loss
        for edges, losses in self._reported.values():
            done, lost = done + edges, lost + losses
        mrr = self._epochs[-1].get("mrr") if self._epochs else None
        progress.report(
            "training",
            self.num_edges + done,
            self.total_edges,
            "edges",
            epoch=f"{self._current.epoch_idx + 1}/{self._current.num_epochs}",
            **({"loss": lost / done} if done else {}),
            **({} if mrr is None else {"mrr": mrr}),
            **({"wait_share": self._wait_s / self._visit_s} if self._visit_s else {}),
            bucket=f"{bucket.lhs},{bucket.rhs}",
        )

    def forget(self, bucket: Bucket) -> None:
        """Drop a bucket that is trained again: its worker was lost."""
        self._reported.pop(bucket, None)
        if (visit := self._iteration.pop(bucket, None)) is not None:
            self._count(visit, -1)

    def add(self, visit: Visit) -> None:
        """Add a finished bucket."""
        self._reported.pop(visit.bucket, None)
        self._iteration[visit.bucket] = visit
        self._count(visit, 1)

    def lines(self) -> list[dict[str, Any]]:
        """The iteration's lines of training_stats.json."""
        now, first = self._current, self.version * len(self._iteration)
        return [
            {
                "lhs_partition": visit.bucket.lhs,
                "rhs_partition": visit.bucket.rhs,
                "index": first + number,
                **{key: value for key, value in visit.stats.items() if key != "seconds"},
                "epoch_idx": now.epoch_idx,
                "edge_path_idx": now.edge_path_idx,
                "edge_chunk_idx": now.edge_chunk_idx,
            }
            for number, visit in enumerate(self._iteration.values())
        ]

    def arrange(self, order: Sequence[Bucket]) -> None:
        """Give the iteration's buckets an order that they have in every run."""
        for bucket in order:
            self._iteration[bucket] = self._iteration.pop(bucket)

    def end_iteration(self, *, wait_s: float, moved: Mapping[str, int]) -> None:
        """End an iteration: the files of its version, if it has any, took `wait_s` seconds of waiting.

        `moved` has what was moved for the commit, by the names of the figures of a visit.
        """
        self.version += 1
        self.num_edges += self._done_edges
        self.step_s += sum(visit.stats["seconds"] for visit in self._iteration.values())
        self._epoch += self._iteration.values()
        self._commit_wait_s += wait_s
        self._commit_moved.update(moved)
        epoch, rest = divmod(self.version, self.schedule.per_epoch)
        if not rest:
            self._end_epoch(epoch)

    def figures(self) -> dict[str, Any]:
        """The run's figures."""
        return {
            "num_epochs": self.version // self.schedule.per_epoch,
            "num_edges": self.num_edges,
            "loss": self._epochs[-1].get("loss") if self._epochs else None,
            "edges_per_s": round(self.num_edges / self.step_s) if self.step_s else None,
            "step_seconds": round(self.step_s, 3),
            "total_seconds": round(time.monotonic() - self._start_s, 3),
            "epochs": self._epochs,
        }

    def _end_epoch(self, epoch: int) -> None:
        visits, self._epoch = self._epoch, []
        seconds = time.monotonic() - self._epoch_start_s
        num_edges = sum(visit.num_edges for visit in visits)
        entry = {
            "epoch": epoch,
            **_means([visit.stats for visit in visits]),
            "seconds": round(seconds, 3),
            "edges_per_s": round(num_edges / seconds),
            "swap_wait_s": round(sum(visit.wait_s for visit in visits) + self._commit_wait_s, 3),
            **self._moved(visits),
            "peak_bytes": max(visit.peak_bytes for visit in visits),
            "buckets": [visit.entry() for visit in visits],
        }
        if self._curves is not None:
            self._curves.write(entry, sum(of_epoch["edges"] for of_epoch in self._epochs))
        self._epochs.append(entry)
        num_left = 0
        for of_epoch in reversed(self._epochs):
            num_left += len(of_epoch.get("buckets", ()))
            if num_left > MAX_BUCKETS:
                of_epoch.pop("buckets", None)

    def _count(self, visit: Visit, times: int) -> None:
        self._done_edges += times * visit.num_edges
        self._done_loss += times * visit.num_edges * _metric(visit.stats, "loss")
        self._wait_s += times * visit.wait_s
        self._visit_s += times * (visit.wait_s + visit.stats["seconds"])

    def _moved(self, visits: Sequence[Visit]) -> dict[str, int]:
        """Count what an epoch has moved; bytes only where there are several workers."""
        names = PARTITIONS + (BYTES if any(visit.worker is not None for visit in visits) else ())
        return {
            name: sum(getattr(visit, name) for visit in visits) + self._commit_moved[name] for name in names
        }


def warn_of_growing_loss(config: Config, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Warn if the last epoch had a higher loss than an earlier one, by more than noise, or none had any."""
    losses = [float(epoch["loss"]) for epoch in epochs if "loss" in epoch]
    if losses and not any(losses):
        log.warning("training: the loss is 0 in every epoch, so nothing is learned: do all edges weigh 0?")
    if losses and losses[-1] > (1 + LOSS_NOISE) * min(losses):
        best = losses.index(min(losses))
        log.warning(
            f"training: the loss has grown from {losses[best]:.4g} in epoch {best + 1} to {losses[-1]:.4g} "
            f"in epoch {len(losses)}: the steps are too large; set lr lower than {config.lr:g}"
        )


def _metric(stats: Mapping[str, Any], name: str) -> float:
    return float(stats["stats"]["metrics"].get(name, 0.0))  # PBG leaves out unused metrics


def _means(visits: Sequence[Mapping[str, Any]]) -> Entry:
    """The number of edges of some lines of training_stats.json, and means over these edges."""
    num_edges = sum(visit["stats"]["count"] for visit in visits)
    means = {
        name: sum(visit["stats"]["count"] * _metric(visit, name) for visit in visits) / num_edges
        for name in ("loss", "reg")
        if num_edges
    }
    held = [visit["eval_stats_after"] for visit in visits if visit.get("eval_stats_after")]
    count = sum(stats["count"] for stats in held)
    mrr = {"mrr": sum(stats["count"] * stats["metrics"]["mrr"] for stats in held) / count} if count else {}
    return {"edges": num_edges} | means | mrr


def _earlier(config: Config, schedule: Schedule, version: int) -> list[Entry]:
    by_epoch: dict[int, list[Mapping[str, Any]]] = {}
    for line in pbg.read_stats(config.checkpoint_path) if version else []:
        if isinstance(line.get("epoch_idx"), int) and isinstance(line.get("stats"), dict):
            by_epoch.setdefault(line["epoch_idx"], []).append(line)
    finished = version // schedule.per_epoch
    return [{"epoch": epoch + 1, **_means(by_epoch[epoch])} for epoch in sorted(by_epoch) if epoch < finished]


_EPOCH = ("loss", "reg", "mrr", "seconds", "edges_per_s", "swap_wait_s", "peak_bytes")
_BUCKET = ("loss", "reg", "mrr", "seconds", "wait_s")


class Curves:
    """Writes the event files of a run."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError where tensorboard is not installed."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(
                "train.tensorboard: tensorboard is not installed here; pip install 'graphmill[tensorboard]', "
                "or set train.tensorboard: false"
            )
        self.uri = storage.join(config.output or config.checkpoint_path, "tensorboard")

    def write(self, epoch: Mapping[str, Any], num_edges: int) -> None:
        """Write an epoch's entry of run.json; `num_edges` were trained before the epoch."""
        from torch.utils.tensorboard import SummaryWriter  # seconds to import

        with run_folder.temporary() as folder:
            with SummaryWriter(folder) as writer:
                for bucket in epoch["buckets"]:
                    num_edges += bucket["edges"]
                    for name in (name for name in _BUCKET if name in bucket):
                        writer.add_scalar(f"bucket/{name}", bucket[name], num_edges)
                for name in (name for name in _EPOCH if name in epoch):
                    writer.add_scalar(f"epoch/{name}", epoch[name], epoch["epoch"])
            for file in Path(folder).iterdir():
                # in the order of names, by which TensorBoard reads; the writer's end in seconds and a number
                *event, rest = file.name.split(".", 4)
                target = storage.join(self.uri, ".".join([*event, f"{epoch['epoch']:08d}", rest]))
                with file.open("rb") as source, storage.atomic_output(target) as stream:
                    shutil.copyfileobj(source, stream)
