"""Training on one bucket: read its edges, hold some out, train batch by batch, rank the held-out edges."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import torch

from graphmill import storage
from graphmill.ask.model import Model
from graphmill.cluster.runtime import cpu_threads
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, by_side, rows_of
from graphmill.errors import DivergenceError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.places import EDGES, REMOVED
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.machine.threads import Task, Threads
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.compiled import compiled_step, query_step
from train.compiled.compiled_step import CompiledStep
from train.compiled.query_step import CompiledQueryStep
from train.edges import batches
from train.edges.batches import TRAINED, EdgeTensors, Role
from train.edges.candidates import CandidateSampler
from train.edges.negative_sampling import Batch
from train.edges.one_vs_all import QueryBatch, has_queries
from train.edges.schedule import Share
from train.gpu.capture import capture_on
from train.gpu.copies import read_beside_steps
from train.gpu.fused_pass import FusedPass
from train.gpu.fused_step import FusedStep
from train.gpu.pinned import Staging
from train.gpu.replayed_step import ReplayedStep
from train.model import learning_rates
from train.model.optimizer import Adagrad
from train.plan import decide
from train.plan.plan import Engine, Plan
from train.step import held_out
from train.step.grouped import GroupedStep
from train.step.plain import PlainStep, StepFigures
from train.step.removed import RemovedStep
from train.step.table import Table
from train.tables import memory
from train.tables.run_context import CPU, RunContext

CHECK_BATCHES = 50  # between two checks that the loss is finite

AnyBatch = TypeVar("AnyBatch", Batch, Batch | QueryBatch)
Tables = Mapping[PartitionKey, Table]
ReportProgress = Callable[[int, float], None]  # takes the number of edges done, and the sum of their losses


class BatchStep:
    """Trains on a batch of `batches.cut_for_training`.

    The compiled step, or else the plain step, trains edges; the plain step trains edges with features; the
    grouped step trains queries, on a GPU as replays of captured graphs.
    """

    def __init__(
        self, config: Config, model: Model, adagrad: Adagrad, engine: Engine, device: torch.device = CPU
    ) -> None:
        self.plain = PlainStep(config, model, adagrad)
        self.grouped = GroupedStep(config, model, adagrad)
        may_compile = config.train.engine != "plain" and device == CPU and has_queries(config)
        if may_compile and (found := query_step.library()) is not None:
            self.grouped = CompiledQueryStep(config, model, adagrad, found)
        capture = capture_on(device)
        self.queries = self.grouped if capture is None else ReplayedStep(self.grouped, capture, device)
        self.candidates = CandidateSampler(config)
        self._moves_all_rows = Lock()
        self.edges: PlainStep | CompiledStep = self.plain
        if engine == "compiled" and (compiled := compiled_step.library()) is not None:
            self.edges = CompiledStep(config, model, adagrad, compiled)

    def set_lr_scale(self, lr_scale: float) -> None:
        """Multiply both learning rates from now on."""
        self.edges.lr_scale = self.plain.lr_scale = self.grouped.lr_scale = lr_scale

    def __call__(
        self, batch: Batch | QueryBatch, tables: Mapping[Side, Table], generator: torch.Generator
    ) -> StepFigures:
        """Update the rows and parameters that the batch touches."""
        if isinstance(batch, QueryBatch):
            batch = self.candidates.draw(batch, len(tables[batch.side]), generator)
            with self._moves_all_rows if batch.candidate_C is None else nullcontext():
                figures = self.queries(batch, tables)
            self.candidates.learn(batch)
            return figures
        return (self.plain if batch.bags else self.edges)(batch, tables, generator)


class BucketTrainer:
    """Trains on one bucket after another, with the tables that it is given.

    Attributes:
        part: shares of the iteration that are done before and after the bucket, for the learning rates.
    """

    def __init__(self, context: RunContext, model: Model, adagrad: Adagrad, plan: Plan) -> None:
        self.config = context.config
        self.settings = context.config.train
        self.context = context
        self.model = model
        self.step = BatchStep(context.config, model, adagrad, plan.engine, context.device)
        self.removed = RemovedStep(context.config, model, adagrad)
        self.staging = Staging(memory.staging_bytes(context), context.device)
        self.hogwild = plan.hogwild
        self.part = 0.0, 1.0
        self.fused: FusedPass | None = None
        if plan.engine == "fused":
            self.fused = FusedPass(FusedStep(context.config, model, adagrad, context.device))

    def read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """Read the bucket's edges of the iteration, and check them; may run in another thread."""
        return read_beside_steps(self.context.device, partial(self._read, bucket, iteration))

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        share = self.context.schedule.share(iteration)
        edges = read_trained(self.context, iteration, bucket, share, self.staging)
        return edges if self.context.delta is None else self.context.delta.used([edges])[0]

    def train(
        self, bucket: Bucket, iteration: Iteration, edges: EdgeTensors, tables: Tables, report: ReportProgress
    ) -> dict[str, Any]:
        """Train on the bucket; returns its entry of training_stats.json, and `seconds` of stepping."""
        self.step.candidates.begin_bucket()
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        edges, held = batches.split(edges, seeds.generator(self.config.seed, "held out", *place))
        stats: dict[str, Any] = {}
        if len(held):
            stats["eval_stats_before"] = self._rank(held, bucket, tables, place)
        begun = time.monotonic()
        delta = self.context.delta
        with nullcontext() if delta is None else delta.still(self.config, edges, bucket, tables):
            removed, known = edges[:0], None
            if edges.role is not None:
                removed, known = edges.of_role(Role.REMOVED), edges.of_role(Role.KNOWN)
                edges = edges.of_role(*TRAINED)
            stats["stats"] = self._step_through(edges, known, bucket, iteration, tables, report)
            self._remove(removed, bucket, iteration, tables)
        seconds = time.monotonic() - begun
        if len(held):
            stats["eval_stats_after"] = self._rank(held, bucket, tables, place)
        return stats | {"seconds": seconds}

    def _step_through(
        self,
        edges: EdgeTensors,
        known: EdgeTensors | None,
        bucket: Bucket,
        iteration: Iteration,
        tables: Tables,
        report: ReportProgress,
    ) -> dict[str, Any]:
        place = _place(iteration, bucket)

        def check_and_report(count: int, total: torch.Tensor) -> None:
            if not torch.isfinite(total).all():
                raise DivergenceError(
                    f"the loss is not finite: epoch {iteration.epoch_idx + 1}, {iteration.edge_path}, bucket "
                    f"{bucket}, within the first {count} edges; lower lr (now {self.config.lr}) or "
                    "relation_lr, or init_scale, or set max_norm"
                )
            report(count, float(total[0]))

        if self.fused is not None:
            seed = seeds.derived(self.config.seed, "bucket", *place)
            relations = range(len(self.config.relations))
            sides = {number: by_side(self.config, number, bucket, tables) for number in relations}
            pairs = {number: (each[Side.LHS], each[Side.RHS]) for number, each in sides.items()}
            total = self.fused.train(edges, pairs, seed, check_and_report, partial(self._lr_scale, iteration))
        else:
            total = self._by_batches(edges, known, bucket, iteration, tables, check_and_report)
        means = (total / max(len(edges), 1)).tolist()
        return {"count": len(edges), "metrics": dict(zip(StepFigures._fields, means, strict=True))}

    def _remove(self, removed: EdgeTensors, bucket: Bucket, iteration: Iteration, tables: Tables) -> None:
        """Move the ends of removed edges apart."""
        if not len(removed):
            return
        generator = seeds.generator(self.config.seed, "removed", *_place(iteration, bucket))
        self.removed.lr_scale = self._lr_scale(iteration, 1.0)
        cut = batches.cut(self.removed.config, removed, generator)
        for batch, sides in with_tables(self.config, cut, bucket, tables):
            self.removed(batch, sides, generator)

    def _lr_scale(self, iteration: Iteration, share: float) -> float:
        """Factor of the learning rates when `share` of a bucket is done."""
        before, after = self.part
        progress = learning_rates.progress(iteration, before + share * (after - before))
        return learning_rates.lr_scale(self.settings, progress)

    def _by_batches(
        self,
        edges: EdgeTensors,
        known: EdgeTensors | None,
        bucket: Bucket,
        iteration: Iteration,
        tables: Tables,
        check_and_report: Callable[[int, torch.Tensor], None],
    ) -> torch.Tensor:
        """Train batch by batch; the sums of StepFigures.

        With several threads, each thread trains batches of its own. All threads update the same tables
        without locks (Hogwild), as PBG's workers do.
        """
        place = _place(iteration, bucket)
        generator = seeds.generator(self.config.seed, "bucket", *place)
        num_rows = num_rows_of(self.config, bucket, tables)
        num_threads = decide.batches_at_once(self.config, len(edges), num_rows) if self.hogwild else 1
        generators = [generator]
        if num_threads > 1:
            generators = [seeds.generator(self.config.seed, "thread", *place, n) for n in range(num_threads)]
        total = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=self.context.device)
        check_edges = CHECK_BATCHES * self.config.batch_size
        done, checked = 0.0, float(-check_edges)

        def report_sometimes(_: int) -> None:
            nonlocal checked
            if done - checked >= check_edges:
                with threads.lock:  # edges, and the loss of the same edges
                    checked, so_far = done, total.clone()
                check_and_report(int(checked), so_far)

        threads = Threads(num_threads, report_sometimes)

        def step(batch: Batch | QueryBatch, sides: Mapping[Side, Table]) -> int:
            nonlocal done
            own = generators.pop()
            figures = torch.stack([each.double() for each in self.step(batch, sides, own)])
            generators.append(own)
            with threads.lock:
                total.add_(figures)
                done += batch.num_edges
            return 1

        def tasks() -> Iterator[Task]:
            begun = 0.0
            cut = batches.cut_for_training(self.config, edges, generator, num_rows, known)
            for batch, sides in with_tables(self.config, cut, bucket, tables):
                self.step.set_lr_scale(self._lr_scale(iteration, begun / len(edges)))
                begun += batch.num_edges
                yield partial(step, batch, sides)

        # Compiled steps on edges do not use torch's threads, but edges are cut with them.
        sharing = num_threads if has_queries(self.config) else 1
        with cpu_threads(torch.get_num_threads() // sharing):
            threads.run(tasks())
        check_and_report(len(edges), total)
        return total

    def _rank(
        self, held: EdgeTensors, bucket: Bucket, tables: Tables, place: tuple[int, ...]
    ) -> dict[str, Any]:
        generator = seeds.generator(self.config.seed, "rank", *place)
        cut = batches.cut(self.config, held, generator)
        pairs = with_tables(self.config, cut, bucket, tables)
        return held_out.rank(self.config, self.model, pairs, generator)


def _place(iteration: Iteration, bucket: Bucket) -> tuple[int, ...]:
    """Numbers that tell a visit of a bucket from all others, for the generators of random numbers."""
    return (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)


def num_rows_of(config: Config, bucket: Bucket, tables: Tables) -> dict[Side, list[tuple[int, int]]]:
    """List, for each side, the rows of each relation's table, and how many of them are outside."""
    sides = [by_side(config, number, bucket, tables) for number in range(len(config.relations))]
    return {side: [(len(each[side]), each[side].num_outside) for each in sides] for side in Side}


def with_tables(
    config: Config, cut: Iterator[AnyBatch], bucket: Bucket, tables: Tables
) -> Iterator[tuple[AnyBatch, Mapping[Side, Table]]]:
    """Pair each batch of a bucket with the tables of its relation."""
    for batch in cut:
        yield batch, by_side(config, batch.relation, bucket, tables)


def read_trained(
    context: RunContext, iteration: Iteration, bucket: Bucket, share: Share, staging: Staging
) -> EdgeTensors:
    """Read the edges of an iteration to train on, among a share of a bucket's."""
    rows = context.schedule.rows(iteration, bucket, share)
    edges = read_edges(context, iteration.edge_path, bucket, rows, staging)
    if context.delta is None:
        return edges
    chosen = context.delta.chosen(edges, iteration, bucket, rows)
    removed = _read_removed(context, iteration, bucket, share, staging)
    return chosen if removed is None else batches.joined([chosen, removed])


def _read_removed(
    context: RunContext, iteration: Iteration, bucket: Bucket, share: Share, staging: Staging
) -> EdgeTensors | None:
    """Read a share of the edges that a bucket has lost; None if it has lost none."""
    path, is_trained = iteration.edge_path, context.config.train.removed_weight > 0
    if not is_trained or not storage.exists(edge_buckets.bucket_uri(path, bucket, REMOVED)):
        return None
    rows = share.rows(edge_buckets.count_edges(path, bucket, REMOVED))
    edges = read_edges(context, path, bucket, rows, staging, REMOVED)
    return replace(edges, role=torch.full_like(edges.lhs, Role.REMOVED, dtype=torch.int8))


def read_edges(
    context: RunContext,
    path: str,
    bucket: Bucket,
    edges: tuple[int, int],
    staging: Staging,
    kind: str = EDGES,
) -> EdgeTensors:
    """Read the edges first..last of a bucket file in the folder `path` to the device, and check them."""
    config, device, num_rel = context.config, context.device, context.num_relations
    rows = rows_of(config, context.num_rows, bucket)
    with staging.arrays() as new:
        return batches.read(config, path, bucket, edges, rows, num_rel, device, new, kind)
