"""Relation prediction: the cross entropy of an edge's relation among all relations, as an auxiliary loss.

    loss   weight x (log Z - score(lhs, relation, rhs))
    Z      sum over all relations r of exp score(lhs, r, rhs)

It is added once for each operator of an edge (`train.relation_prediction`, arXiv:2110.02834). The score of a
diagonal operator is linear in the operator's parameters. Vectors of one operator act like operators:

    entity r . answer = conj(entity) answer . r

Shapes: E edges, R relations, D dimension.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.model.built_in import OPERATORS, split

EDGES_AT_A_TIME = 1 << 14


class Prediction(NamedTuple):
    """The loss of edges, and its gradients with respect to their vectors."""

    loss: Tensor
    entity_ED: Tensor
    answer_ED: Tensor


@torch.no_grad()
def predict(
    operator: str,
    entity_ED: Tensor,
    answer_ED: Tensor,
    leaves: Sequence[Tensor],
    rel_E: Tensor,
    weight_E: Tensor,
) -> Prediction:
    """Compute the loss, and add its gradient to `leaves`, the parameters of the operator of `entity_ED`."""
    product, operator_RD = OPERATORS[operator], torch.cat(list(leaves), dim=-1)
    feature_ED = product.slopes(answer_ED, split(entity_ED, product.parts))
    log_odds_ER = torch.log_softmax(feature_ED @ operator_RD.T, dim=1)
    own_E1 = rel_E.unsqueeze(1)
    loss = -(log_odds_ER.gather(1, own_E1).squeeze(1) * weight_E).sum()
    slope_ER = log_odds_ER.exp().scatter_add(1, own_E1, -torch.ones_like(log_odds_ER[:, :1]))
    slope_ER *= weight_E.unsqueeze(1)
    slope_ED = slope_ER @ operator_RD
    for leaf, part in zip(leaves, (slope_ER.T @ feature_ED).chunk(len(leaves), dim=-1), strict=True):
        leaf.grad = part.contiguous() if leaf.grad is None else leaf.grad + part
    slopes = split(slope_ED, product.parts)
    return Prediction(loss, product.slopes(answer_ED, slopes), product.apply(entity_ED, slopes))


def parts_of(num_edges: int) -> list[slice]:
    """Cut edges into parts whose vectors fit in memory."""
    return [slice(start, start + EDGES_AT_A_TIME) for start in range(0, num_edges, EDGES_AT_A_TIME)]
