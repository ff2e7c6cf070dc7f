"""Masks of negatives, and N3 of operators: what training needs beside `graphmill.model.losses`.

Shapes: C chunks, P positives of a chunk, M negatives of a positive, D dimension, R relations, E edges.
"""

from collections.abc import Sequence

from torch import Tensor

from graphmill.model import operators
from graphmill.model.losses import LossGradient, loss_gradient, n3
from graphmill.model.plug_ins import MASKED
from train.model.optimizer import add_rows

__all__ = ["LossGradient", "loss_gradient", "mask_own", "n3", "n3_of_operator"]


def mask_own(neg_CPM: Tensor, rows_CK: Tensor, num_positives: int, first_negative: int) -> Tensor:
    """Mask the scores of negatives that are the edge's own entity, in place; return the mask [C, P, M].

    `rows_CK` are the candidates' rows: the first `num_positives` are the edges' own, those from
    `first_negative` on are negatives.
    """
    own_CPM = rows_CK[:, :num_positives].unsqueeze(2) == rows_CK[:, first_negative:].unsqueeze(1)
    neg_CPM.detach().masked_fill_(own_CPM, MASKED)
    return own_CPM


def n3_of_operator(operator: str, leaves: Sequence[Tensor], weight_E: Tensor, rel_E: Tensor | None) -> Tensor:
    """Add the gradient of N3 to the operator's parameters `leaves`; return the cost.

    `weight_E` is each edge's coefficient. `rel_E` is each edge's row in dynamic relations' parameters.
    """
    cost = weight_E.new_zeros(())
    groups = operators.OPERATORS[operator].moduli(leaves)
    if not groups:
        return cost
    if rel_E is None:
        weight_R = weight_E.sum()
    else:
        weight_R = add_rows(weight_E.new_zeros(len(leaves[0])), rel_E, weight_E)
    for parts in groups:
        weight = weight_R.view(*weight_R.shape, *[1] * (parts[0].dim() - weight_R.dim()))
        costs, slopes = n3(tuple(part.detach() for part in parts), weight)
        cost += costs.sum()
        for leaf, slope in zip(parts, slopes, strict=True):
            leaf.grad = slope if leaf.grad is None else leaf.grad + slope
    return cost
