"""Training, from the first bucket that is left to the last commit.

    for each iteration left (epoch, edge path, chunk):
        for each bucket, in bucket_order:
            swap partitions; read edges; rank the held-out ones; step through the batches; rank again
        write every partition, the model, the stats; commit

A kill costs the iteration that it interrupts: the next run starts from the last commit and draws the
same numbers, so it ends with the same bytes.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

from graphmill import progress
from graphmill.config import Config
from graphmill.errors import ConfigError, TrainingError
from graphmill.formats import entity_counts, pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Side
from train import batches, held_out, schedule, seeds
from train.batches import EdgeTensors
from train.bucket_order import ordered_buckets
from train.config import TrainConfig
from train.model import Model
from train.negatives import Batch
from train.optimizer import Adagrad
from train.partition_store import PartitionStore
from train.runtime import device_of
from train.step import Step, StepFigures, Table
from train.warm_start import WarmStart

CHECK_BATCHES = 50  # a loss that is not finite is noticed after so many batches at the latest

log = logging.getLogger("graphmill")


class Trainer:
    """One run of training, resumed where its checkpoint ends."""

    def __init__(self, config: Config) -> None:
        self.config = config
        for name, entity in config.entities.items():
            if entity.featurized:
                raise ConfigError(f"entities.{name}.featurized: featurized entities are not supported")
        self.device = device_of(config)
        partitions = {name: entity.num_partitions for name, entity in config.entities.items()}
        self.num_rows = entity_counts.read_counts(config.entity_path, partitions)
        self.num_dynamic = (
            entity_counts.read_relation_count(config.entity_path) if config.dynamic_relations else None
        )
        self.schedule = schedule.plan(config)
        self.version = pbg_checkpoint.read_version(config.checkpoint_path)
        pbg_checkpoint.delete_uncommitted(config.checkpoint_path)
        warm = not self.version and config.init_path
        self.warm_start = WarmStart(config, warm) if warm else None
        self.model, self.adagrad = self._load_model()
        self.store = PartitionStore(config, self.num_rows, self.version, self.device, self.warm_start)
        self.step = Step(config, self.model, self.adagrad)
        self.meter = Meter(
            sum(self.schedule.num_edges_of(i) for i in range(self.version, self.schedule.num_iterations))
        )

    def run(self) -> dict[str, Any]:
        """Train what is left; the figures of the run."""
        first = self.version
        pbg_checkpoint.write_config(self.config.checkpoint_path, self.config.pbg())
        while self.version < self.schedule.num_iterations:
            self._iterate(self.schedule.iteration(self.version))
        return {
            "epochs": self.version // self.schedule.per_epoch,
            "first_version": first,
            "version": self.version,
            "device": str(self.device),
            "num_parameters": self._num_parameters(),
            **self.meter.figures(),
        }

    def _iterate(self, iteration: Iteration) -> None:
        config = self.config
        key = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx)
        grid = [config.num_side_partitions(side) for side in Side]
        order = ordered_buckets(
            config.bucket_order, grid[0], grid[1], seeds.derived(config.seed, "order", *key)
        )
        lines = []
        self.meter.start_iteration()
        for number, bucket in enumerate(order):
            self.store.enter(bucket, iteration)
            stats = self._train_bucket(bucket, iteration)
            index = self.version * len(order) + number
            lines.append(
                {"lhs_partition": bucket.lhs, "rhs_partition": bucket.rhs, "index": index}
                | stats
                | dict(zip(("epoch_idx", "edge_path_idx", "edge_chunk_idx"), key, strict=True))
            )
        self._commit(iteration, lines)

    def _train_bucket(self, bucket: Bucket, iteration: Iteration) -> dict[str, Any]:
        """Train on a bucket; its entry in training_stats.json."""
        config = self.config
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        edges = self._read(bucket, iteration)
        # the same edges are held out in every epoch
        edges, held = batches.split(
            edges, config.eval_fraction, seeds.generator(config.seed, "held out", *place)
        )
        stats: dict[str, Any] = {}
        if len(held):
            stats["eval_stats_before"] = self._rank(held, bucket, place)
        stats["stats"] = self._train(edges, bucket, iteration)
        if len(held):
            stats["eval_stats_after"] = self._rank(held, bucket, place)
        return stats

    def _train(self, edges: EdgeTensors, bucket: Bucket, iteration: Iteration) -> dict[str, Any]:
        place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx, *bucket)
        generator = seeds.generator(self.config.seed, "bucket", *place)
        total = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=self.device)
        count, start = 0, time.monotonic()
        for number, batch in enumerate(batches.cut(self.config, edges, generator)):
            figures = self.step(batch, self._tables(batch, bucket), generator)
            total += torch.stack([each.double() for each in figures])
            count += len(batch)
            if number % CHECK_BATCHES == 0 or count == len(edges):
                self._check_finite(total, bucket, iteration, count)
                self.meter.tell(count, float(total[0]), iteration)
        self.meter.add_bucket(count, time.monotonic() - start, float(total[0]))
        means = (total / max(count, 1)).tolist()
        return {"count": count, "metrics": dict(zip(StepFigures._fields, means, strict=True))}

    def _check_finite(self, total: torch.Tensor, bucket: Bucket, iteration: Iteration, count: int) -> None:
        if not torch.isfinite(total).all():
            raise TrainingError(
                f"the loss is not finite: epoch {iteration.epoch_idx + 1}, {iteration.edge_path}, bucket "
                f"{bucket}, within the first {count} edges; lower lr (now {self.config.lr}) or relation_lr, "
                "or init_scale, or set max_norm"
            )

    def _rank(self, held: EdgeTensors, bucket: Bucket, place: tuple[int, ...]) -> dict[str, Any]:
        generator = seeds.generator(self.config.seed, "rank", *place)
        cut = batches.cut(self.config, held, generator)
        tables = ((batch, self._tables(batch, bucket)) for batch in cut)
        return held_out.rank(self.config, self.model, tables, generator)

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        num_rows = {
            side: [
                self.store.num_rows_of(relation.entity_type(side), side, bucket)
                for relation in self.config.relations
            ]
            for side in Side
        }
        num_rel = len(self.config.relations) if self.num_dynamic is None else self.num_dynamic
        rows = self.schedule.rows(iteration, bucket)
        return batches.read(self.config, iteration.edge_path, bucket, rows, num_rows, num_rel, self.device)

    def _tables(self, batch: Batch, bucket: Bucket) -> Mapping[Side, Table]:
        relation = self.config.relations[batch.relation]
        return {side: self.store.table(relation.entity_type(side), side, bucket) for side in Side}

    def _commit(self, iteration: Iteration, lines: list[dict[str, Any]]) -> None:
        config = self.config
        version = self.version + 1
        self.store.write_all(iteration)
        pbg_checkpoint.write_model(
            config.checkpoint_path,
            version,
            self.model.state_dict(),
            self.adagrad.state_dict(),
            config.pbg(),
            iteration,
        )
        pbg_checkpoint.append_stats(config.checkpoint_path, lines)
        epochs, rest = divmod(version, self.schedule.per_epoch)
        interval = config.checkpoint_preservation_interval
        preserve = epochs if interval and not rest and epochs % interval == 0 else None
        pbg_checkpoint.commit(config.checkpoint_path, version, preserve_epoch=preserve)
        self.store.committed()
        self.version = version

    def _load_model(self) -> tuple[Model, Adagrad]:
        config = self.config
        model = Model(
            config,
            self.num_dynamic,
            relation_init=config.section("train", TrainConfig).relation_init,
            seed=seeds.derived(config.seed, "relations"),
        )
        path, version = config.checkpoint_path, self.version
        if self.warm_start:
            path, version = self.warm_start.path, self.warm_start.version
        grown = self.warm_start is not None and self.num_dynamic is not None
        optimizer_state = None
        if version:
            uri = pbg_checkpoint.model_uri(path, version)
            state, optimizer_state, ended = pbg_checkpoint.read_model(path, version)
            if self.warm_start and self.num_dynamic is not None:
                self.warm_start.check_relations(state, self.num_dynamic)
            model.load_state(state, uri, grown=grown)
            if not self.warm_start:
                self.schedule.check_resumed(ended, version)
        model.to(self.device)
        adagrad = Adagrad(model.parameters, config.relation_lr or config.lr)
        if optimizer_state:
            adagrad.load_state_dict(optimizer_state, uri, grown=grown)
        return model, adagrad

    def _num_parameters(self) -> int:
        rows = sum(sum(counts) * self.config.entity_dimension(name) for name, counts in self.num_rows.items())
        return rows + sum(value.numel() for value in self.model.parameters.values())


class Meter:
    """Edges, seconds and losses, for the progress display and the run's figures."""

    def __init__(self, total_edges: int) -> None:
        self.total_edges = total_edges
        self.start_s = time.monotonic()
        self.train_s = 0.0
        self.num_edges = 0
        self.epoch_edges = 0
        self.epoch_loss = 0.0

    def start_iteration(self) -> None:
        """Begin a new mean of the loss."""
        self.epoch_edges, self.epoch_loss = 0, 0.0

    def add_bucket(self, num_edges: int, seconds: float, loss: float) -> None:
        """Note a finished bucket."""
        self.num_edges += num_edges
        self.train_s += seconds
        self.epoch_edges += num_edges
        self.epoch_loss += loss

    def tell(self, num_edges: int, loss: float, iteration: Iteration) -> None:
        """Tell of progress within a bucket: `num_edges` of it done, with a sum of losses `loss`."""
        mean = (self.epoch_loss + loss) / max(self.epoch_edges + num_edges, 1)
        progress.tell(
            "training",
            self.num_edges + num_edges,
            self.total_edges,
            "edges",
            epoch=f"{iteration.epoch_idx + 1}/{iteration.num_epochs}",
            loss=f"{mean:.4g}",
        )

    def figures(self) -> dict[str, Any]:
        """Rates and the last iteration's mean loss."""
        return {
            "num_edges": self.num_edges,
            "loss": self.epoch_loss / self.epoch_edges if self.epoch_edges else None,
            "edges_per_s": round(self.num_edges / self.train_s) if self.train_s else None,
            "step_seconds": round(self.train_s, 3),
            "total_seconds": round(time.monotonic() - self.start_s, 3),
        }
