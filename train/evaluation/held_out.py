"""Ranking metrics of a bucket's held-out edges, as PBG notes them in training_stats.json.

Each edge is ranked among eval_num_batch_negs and eval_num_uniform_negs candidates of the bucket's own
partitions, unfiltered; ties count against the edge. The metrics show how training goes. To compare models,
use `evaluate`, which ranks among all entities.

Shapes: C chunks, P positives per chunk, M negatives.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.model.plug_ins import MASKED
from graphmill.vocab import Side
from train.edges.negative_sampling import Batch, Sampling
from train.model import losses
from train.model.model import Model
from train.step.plain import gather, scores
from train.step.table import Table

NAMES = ("loss", "pos_rank", "mrr", "r1", "r10", "r50", "auc")


def rank(
    config: PbgConfig,
    model: Model,
    batches: Iterable[tuple[Batch, Mapping[Side, Table]]],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Number of edges, and means of their metrics over both sides."""
    sampling = Sampling.of_evaluation(config)
    totals = torch.zeros(len(NAMES), dtype=torch.float64)
    count = 0
    for batch, tables in batches:
        all_negs = config.relations[batch.relation].all_negs
        for block in sampling.blocks(batch, batch.num_entities(tables), all_negs, generator):
            with torch.no_grad():
                for pos_CP, neg_CPM in scores(model, block, gather(batch, block, tables)).values():
                    totals += _sums(config, pos_CP, neg_CPM, block.weight_CP).cpu()
        count += len(batch)
    # the loss is summed over the sides, ranks are averaged
    sides = torch.tensor([1.0] + [2.0] * (len(NAMES) - 1), dtype=torch.float64)
    means = (totals / (max(count, 1) * sides)).tolist()
    return {"count": count, "metrics": dict(zip(NAMES, means, strict=True))}


def _sums(config: PbgConfig, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor) -> Tensor:
    rank_CP = 1 + (neg_CPM >= pos_CP.unsqueeze(-1)).sum(-1)
    compared_CP = (neg_CPM > MASKED).sum(-1)
    auc_CP = 1 - (rank_CP - 1) / compared_CP.clamp_min(1)
    hits = [(rank_CP <= limit).sum() for limit in (1, 10, 50)]
    loss = losses.loss_gradient(config.loss_fn, config.margin, pos_CP, neg_CPM, weight_CP).loss_CP.sum()
    columns = [loss, rank_CP.sum(), (1 / rank_CP).sum(), *hits, auc_CP.sum()]
    return torch.stack([column.double() for column in columns])
