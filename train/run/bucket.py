"""Training on one bucket: hold some edges out, train batch by batch as planned, rank the held-out edges."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.checkpoints.pbg import Iteration
from graphmill.cluster.runtime import cpu_threads
from graphmill.config.partitions import by_relation
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import DivergenceError
from graphmill.machine.threads import Threads
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.compiled.compiled_step import CompiledStep
from train.edges import batches
from train.edges.batches import TRAINED, EdgeTensors, Role
from train.edges.one_vs_all import QueryBatch, sorts_of
from train.edges.own_rows import NO_BLOCKS, BlockRows
from train.edges.visits import Blocks
from train.gpu.capture import capture_on
from train.gpu.fused_pass import FusedPass, grouped
from train.gpu.fused_step import FusedStep
from train.gpu.replays import Replays
from train.model.optimizer import Adagrad
from train.plan.plan import Plan, Sort
from train.run.reading import BlockReader, BucketReader
from train.step import held_out
from train.step.delta import removing_step
from train.step.plain import PlainStep
from train.step.queries import QueryStep
from train.step.step import SideTables, Step, StepFigures, Tables
from train.tables.run_context import RunContext

CHECK_BATCHES = 50  # between two checks that the loss is finite

ReportProgress = Callable[[int, float], None]  # takes the number of edges done, and the sum of their losses
Check = Callable[[int, Tensor], None]  # takes the number of edges done, and the sums of their StepFigures
Prepared = tuple[Step[Any], Any, SideTables, torch.Generator]  # a step, and its arguments: first a batch
Wave = list[tuple[QueryBatch, SideTables, float]]  # batches with candidates, and the factor of the rates


class BucketTrainer:
    """Trains on one bucket after another, or on visits of blocks, with the tables that it is given."""

    def __init__(self, context: RunContext, model: Model, adagrad: Adagrad, plan: Plan) -> None:
        self.blocks = Blocks(context.config, context.schedule, plan.blocks) if plan.blocks else None
        self.reader = BlockReader(context, self.blocks) if self.blocks else BucketReader(context)
        self.context = context.whole() if self.blocks else context
        self.config, self.model, self.plan = self.context.config, model, plan
        self.steps = make_steps(plan, self.context, model, adagrad)
        self.removing = removing_step(self.config, model, adagrad)
        self.part = 0.0, 1.0  # shares of the iteration that are done before and after the bucket
        self.block_rows = NO_BLOCKS  # of the bucket
        self.fused: FusedPass | None = None
        if "fused" in plan.steps.values():
            self.fused = FusedPass(FusedStep(self.config, model, adagrad, context.device))

    def figures(self) -> dict[str, Any]:
        """Figures of the plan, and the number of trained parameters: all embeddings, and the model's."""
        counts = self.context.num_rows.items()
        num_parameters = sum(sum(rows) * self.config.entity_dimension(name) for name, rows in counts)
        num_parameters += sum(value.numel() for value in self.model.parameters.values())
        return {"device": self.plan.device, "plan": self.plan.figures(), "num_parameters": num_parameters}

    def train(
        self, bucket: Bucket, iteration: Iteration, edges: EdgeTensors, tables: Tables, report: ReportProgress
    ) -> dict[str, Any]:
        """Train on the bucket; returns its entry of training_stats.json, and `seconds` of stepping."""
        place = (*iteration.place[1:], *bucket)  # the same edges in all epochs
        edges, held = batches.split(edges, seeds.generator(self.config.seed, "held out", *place))
        sides, delta = by_relation(self.config, bucket, tables), self.context.delta
        if self.blocks is not None:
            num_rows = self.reader.context.num_rows  # of partitions that are not joined
            self.block_rows = BlockRows.of(self.blocks, bucket, iteration, num_rows)
        stats: dict[str, Any] = {}
        if len(held):
            stats["eval_stats_before"] = self._rank(held, sides, place)
        begun = time.monotonic()
        with nullcontext() if delta is None else delta.freeze_untouched_rows(edges, tables, sides):
            removed, known = edges[:0], None
            if edges.role is not None:
                removed, known = edges.of_role(Role.REMOVED), edges.of_role(Role.KNOWN)
                edges = edges.of_role(*TRAINED)
            check = partial(self._check, bucket, iteration, report)
            total = self._step_through(edges, known, bucket, iteration, sides, check)
            self._remove(removed, bucket, iteration, sides)
        seconds = time.monotonic() - begun
        means = (total / max(len(edges), 1)).tolist()
        metrics = dict(zip(StepFigures._fields, means, strict=True))
        stats["stats"] = {"count": len(edges), "metrics": metrics}
        if len(held):
            stats["eval_stats_after"] = self._rank(held, sides, place)
        return stats | {"seconds": seconds}

    def _step_through(
        self,
        edges: EdgeTensors,
        known: EdgeTensors | None,
        bucket: Bucket,
        iteration: Iteration,
        sides: Sequence[SideTables],
        check: Check,
    ) -> Tensor:
        """Train batch by batch, or by the fused step; the sums of StepFigures.

        As many batches as planned train at the same time. Where some are of edges, all threads update the
        same tables without locks (Hogwild), as PBG's workers do.
        """
        place, at_once = (*iteration.place, *bucket), self.plan.batches_at_once
        if self.fused is not None:
            seed = seeds.derived(self.config.seed, "bucket", *place)
            pairs = [(own[Side.LHS], own[Side.RHS]) for own in sides]
            scale = partial(self._lr_scale, iteration)
            return self.fused.run(*grouped(self.config, edges, self.block_rows), pairs, seed, check, scale)
        generator = seeds.generator(self.config.seed, "bucket", *place)
        sorts = sorts_of(self.config)
        num_rows = {side: [len(own[side]) for own in sides] for side in Side}
        cut = batches.cut_for_training(self.config, edges, generator, num_rows, known, self.block_rows)
        totals = _Totals(check, CHECK_BATCHES * self.config.batch_size, self.context.device)

        def prepared() -> Iterator[Prepared]:
            begun = 0.0
            for number, batch in enumerate(cut):
                step = self.steps[sorts[batch.relation]]
                done = self._done(iteration, begun / len(edges))
                step.lr_scale = lr_scale(self.config.train, done)
                step.share_of_negatives = share_of_negatives(self.config.train, done)
                begun += batch.num_edges
                own = (
                    generator if at_once == 1 else seeds.generator(self.config.seed, "batch", *place, number)
                )
                yield step, batch, sides[batch.relation], own

        for step in self.steps.values():
            step.begin_bucket()
        with cpu_threads(self.plan.threads_of_batch):
            if at_once > 1 and set(self.steps) == {"queries"}:
                self._train_in_waves(prepared(), totals)
            else:
                steps = ((own[0].num_edges, partial(step, *own)) for step, *own in prepared())
                Threads(at_once, totals.check_sometimes).run(partial(totals.add, *own) for own in steps)
        check(len(edges), totals.sums)
        return totals.sums

    def _train_in_waves(self, prepared: Iterator[Prepared], totals: "_Totals") -> None:
        """Train on queries, which see what the waves before have moved: threads change no bit.

        Threads share the batches of a wave, while the next is drawn. Then they share the rows that it moves.
        """
        step, num = self.steps["queries"], self.plan.batches_at_once
        assert isinstance(step, QueryStep)
        waves = _waves(step, prepared, num)
        with ThreadPoolExecutor(min(self.plan.threads, num)) as pool:
            wave = next(waves, None)
            while wave:
                if step.moves_all_rows(*wave[0][:2]):
                    with cpu_threads(self.plan.threads):
                        ends = [step.begin(*wave[0])]
                    coming = next(waves, None)
                else:
                    begun = [pool.submit(step.begin, *own, num) for own in wave]
                    coming = pool.submit(next, waves, None).result()
                    ends = [each.result() for each in begun]
                moved = pool.map(lambda parts: [end() for end in parts], zip(*ends, strict=True))
                for (batch, *_), parts in zip(wave, zip(*moved, strict=True), strict=True):
                    totals.add(batch.num_edges, partial(step.learn, batch, parts))
                totals.check_sometimes(len(wave))
                wave = coming

    def _check(
        self, bucket: Bucket, iteration: Iteration, report: ReportProgress, count: int, total: Tensor
    ) -> None:
        """Report the edges that are done, and the sum of their losses, which must be finite."""
        if not torch.isfinite(total).all():
            raise DivergenceError(
                f"the loss is not finite: epoch {iteration.epoch_idx + 1}, {iteration.edge_path}, bucket "
                f"{bucket}, within the first {count} edges; lower lr (now {self.config.lr}) or "
                "relation_lr, or init_scale, or set max_norm"
            )
        report(count, float(total[0]))

    def _remove(
        self, removed: EdgeTensors, bucket: Bucket, iteration: Iteration, sides: Sequence[SideTables]
    ) -> None:
        generator = seeds.generator(self.config.seed, "removed", *iteration.place, *bucket)
        for batch in batches.cut(self.removing.config, removed, generator, self.block_rows):
            self.removing.lr_scale = self._lr_scale(iteration, 1.0)
            self.removing(batch, sides[batch.relation], generator)

    def _lr_scale(self, iteration: Iteration, share: float) -> float:
        """Factor of the learning rates when `share` of a bucket is done."""
        return lr_scale(self.config.train, self._done(iteration, share))

    def _done(self, iteration: Iteration, share: float) -> float:
        """Share of the run that is done when `share` of a bucket is."""
        before, after = self.part
        return share_done(iteration, before + share * (after - before))

    def _rank(self, held: EdgeTensors, sides: Sequence[SideTables], place: tuple[int, ...]) -> dict[str, Any]:
        generator = seeds.generator(self.config.seed, "rank", *place)
        cut = batches.cut(self.config, held, generator, self.block_rows)
        return held_out.rank(self.config, self.model, cut, sides, generator)


def _waves(step: QueryStep, prepared: Iterator[Prepared], num: int) -> Iterator[Wave]:
    """Draw candidates; `num` batches are a wave, and one that moves all rows is a wave of its own."""
    wave: Wave = []
    for _, batch, tables, generator in prepared:
        drawn = step.draw(batch, tables, generator)
        own = drawn, tables, step.lr_scale
        if step.moves_all_rows(drawn, tables):
            yield [own]
        else:
            wave.append(own)
        if len(wave) == num:
            yield wave
            wave = []
    if wave:
        yield wave


class _Totals:
    """Sums of figures, to which threads add."""

    def __init__(self, check: Check, every: int, device: torch.device) -> None:
        """`check` gets the sums after `every` so many edges."""
        self.sums = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=device)
        self._check, self._every, self._lock = check, every, Lock()
        self._done, self._checked = 0.0, float(-every)

    def add(self, num_edges: float, step: Callable[[], StepFigures]) -> int:
        """Take a step on a batch."""
        figures = torch.stack([figure.double() for figure in step()])
        with self._lock:
            self.sums.add_(figures)
            self._done += num_edges
        return 1

    def check_sometimes(self, _: int) -> None:
        """Check the sums if enough edges have been trained since the last check."""
        if self._done - self._checked >= self._every:
            with self._lock:  # edges, and the loss of the same edges
                self._checked, so_far = self._done, self.sums.clone()
            self._check(int(self._checked), so_far)


def share_done(iteration: Iteration, share: float) -> float:
    """Share of the run that is done (0 to 1) when `share` of each bucket of the iteration is done."""
    index, per_epoch = iteration.in_epoch
    return (iteration.epoch_idx + (index + share) / per_epoch) / iteration.num_epochs


def lr_scale(settings: TrainConfig, done: float) -> float:
    """Factor of both learning rates when the share `done` (0 to 1) of the run is done."""
    match settings.lr_schedule:
        case "linear":
            fallen = done
        case "cosine":
            fallen = (1 - math.cos(math.pi * done)) / 2
        case _:
            return 1.0
    return 1 - (1 - settings.lr_final) * fallen


def share_of_negatives(settings: TrainConfig, done: float) -> float:
    """Share of the negatives that is drawn when the share `done` (0 to 1) of the run is done.

    It doubles, and has few values: a captured step is for one number of candidates.
    """
    first = settings.first_negatives
    return float(max(first, 2 ** round(math.log2(first) * (1 - done))))


def make_steps(plan: Plan, context: RunContext, model: Model, adagrad: Adagrad) -> dict[Sort, Step[Any]]:
    """Make the step of each sort of batch; none for the fused step, which takes whole buckets."""
    made: dict[Sort, Step[Any]] = {}
    own, capture = (context.config, model, adagrad), capture_on(context.device)
    for sort, name in plan.steps.items():
        library = compiled_step.library() if name == "compiled" else None
        if library is not None:
            made[sort] = (CompiledQueryStep if sort == "queries" else CompiledStep)(*own, library)
        elif sort == "queries":
            launch = None if capture is None else Replays(*own, capture, context.device)
            made[sort] = QueryStep(*own, launch)
        elif name == "plain":
            made[sort] = PlainStep(*own)
    return made
