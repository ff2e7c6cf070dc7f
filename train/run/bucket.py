"""Training on one bucket: read its edges, hold some out, step through the batches, rank the held-out ones."""

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
from train.edges.grouped import Questions
from train.edges.negatives import Batch
from train.edges.schedule import Key, key_of, rows_of
from train.evaluation import held_out
from train.gpu.copies import beside
from train.gpu.fused_bucket import fused_buckets
from train.model import learning_rates
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.run.steps import make_step
from train.step.step import StepFigures, Table
from train.step.threads import Task, Threads
from train.tables.start import Start

CHECK_BATCHES = 50  # a loss that is not finite is noticed after so many batches at the latest

AnyBatch = TypeVar("AnyBatch", Batch, Batch | Questions)
Tables = Mapping[Key, Table]
Tell = Callable[[int, float], None]  # told of edges done, and the sum of their losses


class BucketTrainer:
    """Trains on one bucket after another, with the tables that it is handed."""

    def __init__(self, start: Start, model: Model, adagrad: Adagrad) -> None:
        self.config = start.config
        self.settings = start.config.section(TrainConfig)
        self.start = start
        self.model = model
        self.step = make_step(start.config, model, adagrad)
        self.fused = fused_buckets(start.config, model, adagrad, start.device)

    def read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """The bucket's edges of the iteration, checked; may run in another thread."""
        config, start = self.config, self.start
        num_rel = len(config.relations) if start.num_dynamic is None else start.num_dynamic
        edges, rows = (
            start.schedule.rows(iteration, bucket),
            rows_of(self.config, self.start.num_rows, bucket),
        )
        path, device = iteration.edge_path, start.device
        return beside(device, lambda: batches.read(config, path, bucket, edges, rows, num_rel, device))

    def train(
        self, bucket: Bucket, iteration: Iteration, edges: EdgeTensors, tables: Tables, tell: Tell
    ) -> dict[str, Any]:
        """Train on the bucket; what training_stats.json tells of it, and `seconds` of stepping."""
        config = self.config
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        # the same edges are held out in every epoch
        edges, held = batches.split(
            edges, config.eval_fraction, seeds.generator(config.seed, "held out", *place)
        )
        stats: dict[str, Any] = {}
        if len(held):
            stats["eval_stats_before"] = self._rank(held, bucket, tables, place)
        begun = time.monotonic()
        stats["stats"] = self._step_through(edges, bucket, iteration, tables, tell)
        seconds = time.monotonic() - begun
        if len(held):
            stats["eval_stats_after"] = self._rank(held, bucket, tables, place)
        return stats | {"seconds": seconds}

    def _step_through(
        self, edges: EdgeTensors, bucket: Bucket, iteration: Iteration, tables: Tables, tell: Tell
    ) -> dict[str, Any]:
        place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)

        def noted(count: int, total: torch.Tensor) -> None:
            self._check_finite(total, bucket, iteration, count)
            tell(count, float(total[0]))

        if self.fused is not None and not edges.bags:
            count = len(edges)
            rate = learning_rates.lr_scale(self.settings, learning_rates.progress(iteration, 0.0))
            seed = seeds.derived(self.config.seed, "bucket", *place)
            total = self.fused(edges, self._sides(bucket, tables), seed, rate, noted)
        else:
            count, total = self._plain(edges, bucket, iteration, tables, noted)
        means = (total / max(count, 1)).tolist()
        return {"count": count, "metrics": dict(zip(StepFigures._fields, means, strict=True))}

    def _plain(
        self,
        edges: EdgeTensors,
        bucket: Bucket,
        iteration: Iteration,
        tables: Tables,
        noted: Callable[[int, torch.Tensor], None],
    ) -> tuple[int, torch.Tensor]:
        """Batch by batch: how many edges, and the sums of StepFigures.

        Where the step allows, each of torch's threads has batches of its own and moves the same tables as
        the others, without locks, as PBG's workers do (Hogwild).
        """
        place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        generator = seeds.generator(self.config.seed, "bucket", *place)
        num_threads = torch.get_num_threads() if self.step.concurrent else 1
        generators = [generator]
        if num_threads > 1:
            generators = [seeds.generator(self.config.seed, "thread", *place, n) for n in range(num_threads)]
        total = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=self.start.device)
        check_edges = CHECK_BATCHES * self.config.batch_size
        checked = -check_edges

        def tell(done: int) -> None:
            nonlocal checked
            if done - checked >= check_edges:
                checked = done
                noted(done, total)

        threads = Threads(num_threads, tell)

        def step(batch: Batch | Questions, sides: Mapping[Side, Table]) -> int:
            own = generators.pop()
            figures = torch.stack([each.double() for each in self.step(batch, sides, own)])
            generators.append(own)
            with threads.lock:
                total.add_(figures)
            return len(batch)

        def tasks() -> Iterator[Task]:
            taken = 0
            cut = batches.cut_for_training(
                self.config, edges, generator, rows_of(self.config, self.start.num_rows, bucket)
            )
            for batch, sides in self._with_tables(cut, bucket, tables):
                done = learning_rates.progress(iteration, taken / len(edges))
                self.step.set_lr_scale(learning_rates.lr_scale(self.settings, done))
                taken += len(batch)
                yield partial(step, batch, sides)

        threads.run(tasks())
        noted(len(edges), total)
        return len(edges), total

    def _sides(self, bucket: Bucket, tables: Tables) -> dict[int, tuple[Table, Table]]:
        """The tables that each relation meets in the bucket."""
        found = {}
        for number, relation in enumerate(self.config.relations):
            lhs, rhs = (
                tables[key_of(self.config, relation.entity_type(side), side, bucket)] for side in Side
            )
            found[number] = lhs, rhs
        return found

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
            relation = self.config.relations[batch.relation]
            yield (
                batch,
                {
                    side: tables[key_of(self.config, relation.entity_type(side), side, bucket)]
                    for side in Side
                },
            )
