"""The plan of a run: its steps, the place of its rows, its threads and workers; an estimate of what it takes.

`decide` makes a plan: one log line of the run, and `plan` under `stages.train` in run.json.

    steps       of each sort of batch that training has: edges, edges with features, queries (1-vs-all)
                compiled   C++ on a CPU                                        train/compiled
                plain      torch, on any device                                train/step
                replayed   torch, captured on a GPU, for queries               train/gpu/replays.py
                fused      kernels on a GPU, or their reference on a CPU       train/gpu
    placement   files      the rows of two blocks of partitions are in memory, or of one bucket, or all rows
                           of a graph without partitions
                buffer     all rows are in the host's memory, `slots` partitions of them on the device
                device     the whole graph is on the device: on a GPU, or in the host's memory

This module needs no torch.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from distributed import Client, get_worker

from graphmill import cluster
from graphmill.config import Config, PbgConfig
from graphmill.display.readable import duration, number, size
from graphmill.run.job import Estimate, GraphSize, Rows
from graphmill.vocab import TRAIN_SPLIT, Side

Sort = Literal["edges", "features", "queries"]
StepName = Literal["compiled", "plain", "replayed", "fused"]
Steps = Mapping[Sort, StepName]  # of each sort of batch
Placement = Literal["files", "buffer", "device"]

TOPIC = "graphmill-plan"  # of Dask events
# One core with the compiled step in float32 (docs/benchmarks/figures.md, D=100 and D=400): three products per
# side with all negatives at this rate, and this time for each element of an edge's vectors.
FLOPS = 85e9
ELEMENT_S = 7.3e-9

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Plan:
    """The way in which a process trains."""

    device: str
    steps: Steps  # removed edges have the plain step
    placement: Placement
    slots: int  # partitions on the device at a time; 0 unless `placement` is buffer
    blocks: int  # that the partitions of a type are joined to; 0: buckets are trained one by one
    prefetch: bool  # the next bucket's partitions are read during training
    writes_beside: bool  # a copy of all rows is written while the next iteration trains (`device`)
    threads: int  # of the process
    batches_at_once: int  # that train at the same time; 1: all threads work on one batch
    workers: int
    num_partitions: int  # of the type that has most; the rows of one partition stay in memory
    reasons: tuple[str, ...] = ()  # sizes and obstacles that decided
    ignored: tuple[str, ...] = ()  # settings that have no effect, and why
    varying: tuple[str, ...] = ()  # settings by which the same seed gives other bytes in the next run

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.batches_at_once > 1:
            threads += f" on {self.batches_at_once} batches at the same time"
        steps = (f"the {step} step for {sort}" for sort, step in self.steps.items())
        rows = {
            "files": "partitions from files" + f", in {self.blocks} blocks" * (self.blocks > 1)
            if self.num_partitions > 1
            else "all rows in memory",
            "buffer": f"{self.slots} partitions on the device at a time",
            "device": "the whole graph " + ("in memory" if self.device == "cpu" else "on the device"),
        }
        text = f"on {self.device} with {', '.join(steps)}, {threads}, {rows[self.placement]}"
        return text if self.workers == 1 else f"{text}, as one of {self.workers} workers"

    @property
    def threads_of_batch(self) -> int:
        """Threads of torch beside each other batch; compiled steps on edges use none, but cutting does."""
        return max(1, self.threads // self.batches_at_once) if "queries" in self.steps else self.threads

    def log(self) -> None:
        """Log the plan, its reasons, and the settings that have no effect."""
        log.info("training %s", self)
        if self.varying:
            log.info("training: another run with this seed gives other bytes, by %s", ", ".join(self.varying))
        else:
            log.info("training: another run with this seed and this plan gives the same bytes")
        for reason in self.reasons:
            log.info("training: %s", reason)
        for setting in self.ignored:
            log.warning("training: %s", setting)

    def announce(self) -> None:
        """Log the plan here, or inside a Dask task where the client runs `announced`."""
        try:
            get_worker().log_event(TOPIC, self.figures())
        except ValueError:  # no Dask task
            self.log()

    def figures(self) -> dict[str, Any]:
        """The plan as JSON types, for run.json."""
        return asdict(self) | {name: list(getattr(self, name)) for name in ("reasons", "ignored", "varying")}


@contextmanager
def announced(client: Client) -> Iterator[None]:
    """Log the plans that tasks announce while the block runs. Workers with equal plans share a log line."""
    seen: set[str] = set()

    def show(event: tuple[Any, dict[str, Any]]) -> None:
        content = {field.name: event[1][field.name] for field in fields(Plan)}  # Dask adds the worker
        if str(content) not in seen:
            seen.add(str(content))
            Plan(**content).log()

    with cluster.listening(client, TOPIC, show):
        yield


def estimate(config: Config, graph: GraphSize | None) -> Estimate:
    """Estimate buckets, memory and time; without the graph's size only buckets."""
    rows: Rows = {"train, buckets": " x ".join(str(config.num_side_partitions(side)) for side in Side)}
    if graph is None:
        return Estimate(rows)
    rows["train, memory for vectors"] = size(bucket_bytes(config, graph))
    num_edges = graph.num_edges.get(TRAIN_SPLIT, 0)
    rows_of = (count / config.entities[name].num_partitions for name, count in graph.num_entities.items())
    num_negatives = config.num_compared(round(max(rows_of, default=0)))
    dimension = max(map(config.entity_dimension, config.entities))  # of all models of an ensemble
    first = config.train.first_negatives
    share = 1.0 if first == 1 else (first - 1) / math.log(first)  # the mean of one that doubles
    seconds = num_edges * dimension * (12 * num_negatives * share / FLOPS + ELEMENT_S) * config.num_epochs
    has_queries = any(relation.all_negs for relation in config.relations)  # edges of one query share them
    rows["train, time of one core"] = (
        f"{'at most' if has_queries else 'about'} {duration(max(1, seconds))} for epochs: "
        f"{number(config.num_epochs)}, edges: {number(num_edges)}"
    )
    return Estimate(rows, graph)


def bucket_bytes(config: Config, graph: GraphSize) -> float:
    """Bytes of a model's rows and sums of a bucket: two partitions of each type, or its only one."""
    total = 0.0
    for name, count in graph.num_entities.items():
        dimension = PbgConfig.entity_dimension(config, name)
        states = dimension if config.train.optimizer == "adagrad" else 1
        partitions = config.entities[name].num_partitions
        total += min(2, partitions) * count / partitions * 4 * (dimension + states)
    return total
