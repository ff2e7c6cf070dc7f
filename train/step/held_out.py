"""Ranking metrics of a bucket's held-out edges, as PBG notes them in training_stats.json.

Each edge is ranked among eval_num_batch_negs and eval_num_uniform_negs candidates of the bucket's own
partitions, unfiltered; ties count against the edge. The metrics show how training goes. To compare models,
use `evaluate`, which ranks among all entities.

`auc` is PBG's (docs/formats/pbg_v1.md): a tie is no win, a masked negative one.

Shapes: C chunks, P positives per chunk, M negatives; S batches of a span, B edges and N negatives of a batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import PbgConfig
from graphmill.model import losses
from graphmill.vocab import Side
from train.edges.negative_sampling import Batch, Sampling
from train.step.plain import gather, scores
from train.step.step import SideTables

NAMES = ("loss", "pos_rank", "mrr", "r1", "r10", "r50", "auc")


def rank(
    config: PbgConfig,
    model: Model,
    batches: Iterable[Batch],
    sides: Sequence[SideTables],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Number of edges, and means of their metrics over the sides with negatives; `sides` by relation."""
    sampling = Sampling.of_evaluation(config)
    totals = torch.zeros(len(NAMES), dtype=torch.float64)
    count = 0
    for batch in batches:
        tables = sides[batch.relation]
        scored: dict[Side, list[tuple[Tensor, Tensor]]] = {side: [] for side in Side}
        for block in sampling.blocks(batch, tables, generator):
            with torch.no_grad():
                for side, (pos_CP, neg_CPM) in scores(model, block, gather(batch, block, tables)).items():
                    if neg_CPM.numel():
                        own = pos_CP, neg_CPM.clone(), block.weight_CP  # which the loss overwrites
                        loss_CP, *_ = losses.loss_gradient(config.loss_fn, config.margin, *own)
                        sums = [loss_CP.sum(), *rank_sums(pos_CP, neg_CPM)]
                        totals[:-1] += torch.stack([figure.double() for figure in sums]).cpu()
                        scored[side].append((pos_CP, neg_CPM))
        totals[-1] += sum(num_in_order(parts, batch.num_steps, generator) for parts in scored.values())
        count += len(batch)
    # the loss is summed over the sides, ranks are averaged
    num_sides = max(len(sampling.sides), 1)
    divisors = torch.tensor([1.0] + [float(num_sides)] * (len(NAMES) - 1), dtype=torch.float64)
    means = (totals / (max(count, 1) * divisors)).tolist()
    return {"count": count, "metrics": dict(zip(NAMES, means, strict=True))}


def num_in_order(
    scored: Sequence[tuple[Tensor, Tensor]], num_batches: int, generator: torch.Generator
) -> int:
    """Draw pairs of an edge and a negative, as many as there are edges; count those in order.

    The edge scores higher there. `scored` has pos_CP and neg_CPM of each block of `num_batches` batches.
    """
    if not scored:
        return 0
    pos_SB, neg_SN = (
        torch.cat([score.reshape(num_batches, -1) for score in of_blocks], 1)
        for of_blocks in zip(*scored, strict=True)
    )
    drawn = []
    for score_SK in (pos_SB, neg_SN):
        at_SB = torch.randint(score_SK.shape[1], pos_SB.shape, generator=generator)
        drawn.append(score_SK.gather(1, at_SB.to(score_SK.device)))
    return int(torch.gt(*drawn).sum())


def rank_sums(pos: Tensor, neg: Tensor) -> list[Tensor]:
    """Sum up ranks [...] of edges among their negatives [..., M], reciprocal ranks, and hits: NAMES[1:-1]."""
    rank = 1 + (neg >= pos.unsqueeze(-1)).sum(-1)
    return [rank.sum(), (1 / rank).sum(), *((rank <= limit).sum() for limit in (1, 10, 50))]
