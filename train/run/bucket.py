"""Training on one bucket: read its edges, hold some out, train batch by batch, rank the held-out edges."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from graphmill.errors import TrainingError
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Side
from train.config import TrainConfig
from train.edges import batches, seeds
from train.edges.batches import EdgeTensors
from train.edges.negative_sampling import Batch
from train.edges.one_vs_all import QueryBatch
from train.edges.partitions import PartitionKey, by_side, rows_of
from train.evaluation import held_out
from train.gpu import fused_pass
from train.gpu.copies import read_beside_steps
from train.gpu.fused_step import FusedStep
from train.model import learning_rates
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.plan.plan import Plan
from train.run.batch_step import BatchStep
from train.step.plain import StepFigures
from train.step.table import Table
from train.step.threads import Task, Threads
from train.tables.run_context import RunContext

CHECK_BATCHES = 50  # a loss that is not finite is noticed after so many batches at the latest

AnyBatch = TypeVar("AnyBatch", Batch, Batch | QueryBatch)
Tables = Mapping[PartitionKey, Table]
ReportProgress = Callable[[int, float], None]  # takes the number of edges done, and the sum of their losses


class BucketTrainer:
    """Trains on one bucket after another, with the tables that it is given."""

    def __init__(self, context: RunContext, model: Model, adagrad: Adagrad, plan: Plan) -> None:
        self.config = context.config
        self.settings = context.config.section(TrainConfig)
        self.context = context
        self.model = model
        self.step = BatchStep(context.config, model, adagrad, plan.engine)
        self.hogwild = plan.hogwild
        is_fused = plan.engine == "fused"
        self.fused = FusedStep(context.config, model, adagrad, context.device) if is_fused else None

    def read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """Read the bucket's edges of the iteration, and check them; may run in another thread."""
        return read_edges(self.context, bucket, iteration)

    def train(
        self,
        bucket: Bucket,
        iteration: Iteration,
        edges: EdgeTensors,
        tables: Tables,
        report: ReportProgress,
    ) -> dict[str, Any]:
        """Train on the bucket; returns its entry of training_stats.json, and `seconds` of stepping."""
        config = self.config
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        # The same edges are held out in every epoch.
        edges, held = batches.split(
            edges, config.eval_fraction, seeds.generator(config.seed, "held out", *place)
        )
        stats: dict[str, Any] = {}
        if len(held):
            stats["eval_stats_before"] = self._rank(held, bucket, tables, place)
        begun = time.monotonic()
        stats["stats"] = self._step_through(edges, bucket, iteration, tables, report)
        seconds = time.monotonic() - begun
        if len(held):
            stats["eval_stats_after"] = self._rank(held, bucket, tables, place)
        return stats | {"seconds": seconds}

    def _step_through(
        self,
        edges: EdgeTensors,
        bucket: Bucket,
        iteration: Iteration,
        tables: Tables,
        report: ReportProgress,
    ) -> dict[str, Any]:
        place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)

        def check_and_report(count: int, total: torch.Tensor) -> None:
            self._check_finite(total, bucket, iteration, count)
            report(count, float(total[0]))

        if self.fused is not None:
            done = learning_rates.progress(iteration, 0.0)
            self.fused.lr_scale = learning_rates.lr_scale(self.settings, done)
            seed = seeds.derived(self.config.seed, "bucket", *place)
            total = fused_pass.train(self.fused, edges, self._sides(bucket, tables), seed, check_and_report)
        else:
            total = self._by_batches(edges, bucket, iteration, tables, check_and_report)
        means = (total / max(len(edges), 1)).tolist()
        return {"count": len(edges), "metrics": dict(zip(StepFigures._fields, means, strict=True))}

    def _by_batches(
        self,
        edges: EdgeTensors,
        bucket: Bucket,
        iteration: Iteration,
        tables: Tables,
        check_and_report: Callable[[int, torch.Tensor], None],
    ) -> torch.Tensor:
        """Train batch by batch; the sums of StepFigures.

        With several threads, each has batches of its own and moves the same tables as the others, without
        locks, as PBG's workers do (Hogwild).
        """
        place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        generator = seeds.generator(self.config.seed, "bucket", *place)
        num_threads = torch.get_num_threads() if self.hogwild else 1
        generators = [generator]
        if num_threads > 1:
            generators = [seeds.generator(self.config.seed, "thread", *place, n) for n in range(num_threads)]
        total = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=self.context.device)
        check_edges = CHECK_BATCHES * self.config.batch_size
        checked = -check_edges

        def report_now_and_then(done: int) -> None:
            nonlocal checked
            if done - checked >= check_edges:
                checked = done
                check_and_report(done, total)

        threads = Threads(num_threads, report_now_and_then)

        def step(batch: Batch | QueryBatch, sides: Mapping[Side, Table]) -> int:
            own = generators.pop()
            figures = torch.stack([each.double() for each in self.step(batch, sides, own)])
            generators.append(own)
            with threads.lock:
                total.add_(figures)
            return len(batch)

        def tasks() -> Iterator[Task]:
            begun = 0
            num_rows = rows_of(self.config, self.context.num_rows, bucket)
            cut = batches.cut_for_training(self.config, edges, generator, num_rows)
            for batch, sides in self._with_tables(cut, bucket, tables):
                done = learning_rates.progress(iteration, begun / len(edges))
                self.step.set_lr_scale(learning_rates.lr_scale(self.settings, done))
                begun += len(batch)
                yield partial(step, batch, sides)

        threads.run(tasks())
        check_and_report(len(edges), total)
        return total

    def _sides(self, bucket: Bucket, tables: Tables) -> dict[int, tuple[Table, Table]]:
        """The tables of lhs and rhs that each relation meets in the bucket."""
        relations = range(len(self.config.relations))
        sides = (by_side(self.config, relation, bucket, tables) for relation in relations)
        return {number: (each[Side.LHS], each[Side.RHS]) for number, each in enumerate(sides)}

    def _check_finite(self, total: torch.Tensor, bucket: Bucket, iteration: Iteration, count: int) -> None:
        if not torch.isfinite(total).all():
            raise TrainingError(
                f"the loss is not finite: epoch {iteration.epoch_idx + 1}, {iteration.edge_path}, bucket "
                f"{bucket}, within the first {count} edges; lower lr (now {self.config.lr}) or relation_lr, "
                "or init_scale, or set max_norm"
            )

    def _rank(
        self, held: EdgeTensors, bucket: Bucket, tables: Tables, place: tuple[int, ...]
    ) -> dict[str, Any]:
        generator = seeds.generator(self.config.seed, "rank", *place)
        cut = batches.cut(self.config, held, generator)
        return held_out.rank(self.config, self.model, self._with_tables(cut, bucket, tables), generator)

    def _with_tables(
        self, cut: Iterator[AnyBatch], bucket: Bucket, tables: Tables
    ) -> Iterator[tuple[AnyBatch, Mapping[Side, Table]]]:
        for batch in cut:
            yield batch, by_side(self.config, batch.relation, bucket, tables)


def read_edges(context: RunContext, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
    """Read a bucket's edges of an iteration to the device, and check them."""
    config, path, device = context.config, iteration.edge_path, context.device
    num_rel = context.num_relations
    edges = context.schedule.rows(iteration, bucket)
    rows = rows_of(config, context.num_rows, bucket)
    return read_beside_steps(device, lambda: batches.read(config, path, bucket, edges, rows, num_rel, device))
