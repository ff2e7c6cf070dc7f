"""PBG's evaluation: each bucket's edges in batches, scored and handed to an evaluator of PBG's form.

Shapes: B edges of a batch, M negatives of an edge, C chunks, P positives of a chunk, N rows of a partition.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, by_relation, keys_of
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets
from graphmill.model.plug_ins import MASKED
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.edges import batches
from train.edges.negative_sampling import Batch, Sampling
from train.model.features import Bags
from train.pbg_api.schema import settings_of
from train.run.reading import BucketReader
from train.step import plain
from train.step.held_out import NAMES, num_in_order, rank_sums
from train.step.step import SideTables, Table, Tables
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext

log = logging.getLogger("graphmill")

SerializedStats = dict[str, int | dict[str, float]]


class Scores(NamedTuple):
    """Scores of edges, and of their negatives on each side; a side without negatives has M = 0."""

    lhs_pos: Tensor  # [B]
    rhs_pos: Tensor
    lhs_neg: Tensor  # [B, M]; with all_negs, column i is row i of the partition
    rhs_neg: Tensor


@dataclass(frozen=True, eq=False)
class EntityList:
    """Entities of one side of edges: rows of the partition, or numbers of lists of features."""

    tensor: Tensor  # [B]
    bags: Bags | None = None

    def to_tensor(self) -> Tensor:
        """The rows, [B]."""
        return self.tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> "EntityList":
        return replace(self, tensor=self.tensor[rows])


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges of a batch."""

    lhs: EntityList
    rhs: EntityList
    rel: Tensor  # [B] with dynamic relations, else the number of the one relation of all edges
    weight: Tensor  # [B] weight of the edge times that of its relation

    def has_scalar_relation_type(self) -> bool:
        """Tell whether all edges have one relation."""
        return self.rel.dim() == 0

    def get_relation_type(self) -> int | Tensor:
        """The relation: its number, or the number of each edge's."""
        return int(self.rel) if self.has_scalar_relation_type() else self.rel

    def __len__(self) -> int:
        return len(self.lhs)

    def __getitem__(self, rows: Any) -> "EdgeList":
        rel = self.rel if self.has_scalar_relation_type() else self.rel[rows]
        return EdgeList(self.lhs[rows], self.rhs[rows], rel, self.weight[rows])


class Stats:
    """Sums, or means, of metrics over `count` edges."""

    def __init__(self, *, count: int, **metrics: float) -> None:
        self.count, self.metrics = count, metrics

    @classmethod
    def sum(cls, stats: Iterable["Stats"]) -> "Stats":
        """Add metrics and counts."""
        listed = list(stats)
        names = dict.fromkeys(name for stat in listed for name in stat.metrics)
        totals = {name: sum(stat.metrics.get(name, 0) for stat in listed) for name in names}
        return cls(count=sum(stat.count for stat in listed), **totals)

    def average(self) -> "Stats":
        """Divide the metrics by the count."""
        means = {name: metric / max(self.count, 1) for name, metric in self.metrics.items()}
        return Stats(count=self.count, **means)

    def to_dict(self) -> SerializedStats:
        """Return {count, metrics}."""
        return {"count": self.count, "metrics": dict(self.metrics)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stats) and self.to_dict() == other.to_dict()

    def __str__(self) -> str:
        metrics = " , ".join(f"{name}:  {value:.6g}" for name, value in self.metrics.items())
        return f"{metrics} , count:  {self.count}"


class RankingEvaluator:
    """Ranks each edge among its negatives; ties count against it. Subclasses change scores in `eval`."""

    def process_one_batch(self, model: Callable[[EdgeList], Scores], batch_edges: EdgeList) -> Stats:
        """Score the edges, and return sums of metrics."""
        return self.eval(model(batch_edges), batch_edges)

    def eval(self, scores: Scores, batch_edges: EdgeList) -> Stats:
        """Sum metrics over the edges, as means over the sides with negatives."""
        sides = [(scores.lhs_pos, scores.lhs_neg), (scores.rhs_pos, scores.rhs_neg)]
        of_sides = [_sums(pos_B, neg_BM) for pos_B, neg_BM in sides if neg_BM.numel()]
        if not of_sides:
            raise ConfigError(
                "num_batch_negs, num_uniform_negs: found no negatives to rank edges among; set one of them, "
                "or all_negs of the relation"
            )
        means = {name: sum(of_side[name] for of_side in of_sides) / len(of_sides) for name in of_sides[0]}
        return Stats(count=len(batch_edges), **means)


class FilteredRankingEvaluator(RankingEvaluator):
    """Ranks edges among all entities that make no edge of `filter_paths`; for one type in one partition."""

    def __init__(self, config: Any, filter_paths: Sequence[str]) -> None:
        """Read the edges to leave out; only one type, partition and relation with all_negs are supported."""
        entities, relations = list(config.entities.values()), config.relations
        if len(entities) != 1 or len(relations) != 1 or not relations[0].all_negs:
            raise ConfigError(
                "FilteredRankingEvaluator: expected one entity type, and one relation with all_negs"
            )
        if entities[0].featurized or entities[0].num_partitions > 1:
            raise ConfigError("FilteredRankingEvaluator: expected one partition, and no lists of features")
        self._known: dict[tuple[Side, int, int], list[int]] = {}
        for path in filter_paths:
            edges = edge_buckets.read_bucket(str(path), Bucket(0, 0))
            rel = edges.rel.tolist()
            for lhs, number, rhs in zip(edges.lhs.tolist(), rel, edges.rhs.tolist(), strict=True):
                self._known.setdefault((Side.LHS, number, rhs), []).append(lhs)
                self._known.setdefault((Side.RHS, number, lhs), []).append(rhs)

    def eval(self, scores: Scores, batch_edges: EdgeList) -> Stats:
        """Mask the known edges, in place, and rank."""
        lhs_B, rhs_B = (entities.to_tensor().tolist() for entities in (batch_edges.lhs, batch_edges.rhs))
        rel_B = batch_edges.rel.expand(len(batch_edges)).tolist()
        for row, (lhs, number, rhs) in enumerate(zip(lhs_B, rel_B, rhs_B, strict=True)):
            scores.lhs_neg[row, self._known.get((Side.LHS, number, rhs), [])] = MASKED
            scores.rhs_neg[row, self._known.get((Side.RHS, number, lhs), [])] = MASKED
        return super().eval(scores, batch_edges)


def do_eval(
    config: Any, model: None = None, evaluator: Any = None, subprocess_init: Callable[[], None] | None = None
) -> SerializedStats:
    """Evaluate the checkpoint on the edges of edge_paths; returns {count, metrics} over all edges.

    Args:
        config: A ConfigSchema of ours or of PBG, or its to_dict().
        model: None: the model is that of the checkpoint.
        evaluator: An object with `process_one_batch`, as RankingEvaluator, the default.
        subprocess_init: A function to call first.

    Raises:
        NotFoundError: there is no checkpoint.
    """
    *_, (_, _, stats) = do_eval_and_report_stats(config, model, evaluator, subprocess_init)
    return stats.to_dict()


def do_eval_and_report_stats(
    config: Any, model: None = None, evaluator: Any = None, subprocess_init: Callable[[], None] | None = None
) -> Iterator[tuple[int | None, Bucket | None, Stats]]:
    """Evaluate as `do_eval`, and yield means: of (edge path, bucket), (edge path, None), (None, None)."""
    if model is not None:
        raise ConfigError(
            "do_eval: model: expected None: the checkpoint and the configuration make the model"
        )
    if subprocess_init is not None:
        subprocess_init()
    evaluator = evaluator or RankingEvaluator()
    settings = settings_of(config)
    run = TrainedRun.to_evaluate(settings, None)
    context = RunContext(settings, version=run.version)
    scored, files, reader = run.load_model(), PartitionFiles(context), BucketReader(context)
    tables: dict[PartitionKey, Table] = {}
    generator = seeds.generator(settings.seed, "eval")
    totals: list[Stats] = []
    for number, path in enumerate(settings.edge_paths):
        parts = []
        for (edge_path, bucket), num_edges in context.schedule.num_edges.items():
            if edge_path != number:
                continue
            needed = keys_of(settings, bucket)
            tables = {key: tables[key] for key in tables.keys() & needed}  # others leave before these come
            tables |= {key: files.load(key, context.version) for key in sorted(needed - tables.keys())}
            edges = reader.read_rows(path, bucket, (0, num_edges))
            parts.append(_of_bucket(settings, scored, evaluator, edges, bucket, tables, generator))
            yield number, bucket, parts[-1].average()
        totals.append(Stats.sum(parts))
        yield number, None, totals[-1].average()
    stats = Stats.sum(totals).average()
    log.info("evaluation: %s", stats)
    yield None, None, stats


def _of_bucket(
    config: Config,
    model: Model,
    evaluator: Any,
    edges: batches.EdgeTensors,
    bucket: Bucket,
    tables: Tables,
    generator: torch.Generator,
) -> Stats:
    stats = []
    sides = by_relation(config, bucket, tables)
    for span in batches.cut(config, edges, generator):
        scorer = _Scorer(config, model, sides[span.relation], generator)
        lhs, rhs = (EntityList(span.index[side], span.bags.get(side)) for side in Side)
        rel = torch.tensor(span.relation) if span.rel_B is None else span.rel_B
        listed = EdgeList(lhs, rhs, rel, span.weight_B)
        size = len(span) // span.num_steps
        for start in range(0, len(span), max(size, 1)):
            stats.append(evaluator.process_one_batch(scorer, listed[start : start + size]))
    return Stats.sum(stats)


@dataclass(frozen=True)
class _Scorer:
    """The model of a bucket, as evaluators call it."""

    config: Config
    model: Model
    tables: SideTables
    generator: torch.Generator

    def __call__(self, edges: EdgeList) -> Scores:
        """Score edges, and the negatives that the configuration asks for."""
        listed = {Side.LHS: edges.lhs, Side.RHS: edges.rhs}
        is_static = edges.has_scalar_relation_type()
        batch = Batch(
            int(edges.rel) if is_static else 0,
            {side: entities.tensor for side, entities in listed.items()},
            None if is_static else edges.rel,
            edges.weight,
            {side: entities.bags for side, entities in listed.items() if entities.bags is not None},
        )
        sampling = replace(Sampling.of_training(self.config), chunk_edges=1)  # chunks of PBG
        parts: dict[Side, list[plain.StepScores]] = {side: [] for side in Side}
        for block in sampling.blocks(batch, self.tables, self.generator):
            with torch.no_grad():
                vectors = plain.gather(batch, block, self.tables)
                for side, scores in plain.scores(self.model, block, vectors).items():
                    parts[side].append(scores)
        lhs, rhs = (_joined(parts[side]) for side in Side)
        return Scores(lhs[0], rhs[0], lhs[1], rhs[1])


def _joined(parts: Sequence[plain.StepScores]) -> tuple[Tensor, Tensor]:
    """Join the scores of blocks: [B] and [B, M]; a smaller chunk, with fewer negatives, gets masked ones."""
    negatives = [part.neg_CPM.flatten(0, 1) for part in parts]
    width = max(negative.shape[1] for negative in negatives)
    padded = [F.pad(negative, (0, width - negative.shape[1]), value=MASKED) for negative in negatives]
    return torch.cat([part.pos_CP.flatten() for part in parts]), torch.cat(padded)


def _sums(pos_B: Tensor, neg_BM: Tensor) -> dict[str, float]:
    """Sum the metrics of one side; auc counts pairs of an edge and a negative that are in order."""
    in_order = num_in_order([(pos_B, neg_BM)], 1, torch.Generator().manual_seed(0))
    sums: list[Tensor | int] = [*rank_sums(pos_B, neg_BM), in_order]
    return {name: float(value) for name, value in zip(NAMES[1:], sums, strict=True)}
