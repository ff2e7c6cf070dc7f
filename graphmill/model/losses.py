"""Losses and the regulariser, each with its gradient in closed form; losses of users, by autograd.

    ranking   sum over negatives of max(0, neg - pos + margin)
    logistic  BCE(pos, 1) + mean over negatives of BCE(neg, 0)
    softmax   cross entropy of the positive among [pos, negatives]

    N3        coefficient x sum of |x|^3; of moduli for complex operators (arXiv:1806.07297)

A masked negative has the score MASKED: its loss and its gradient are 0, and the mean of logistic counts it
(as in PBG). Source: docs/formats/pbg_v1.md.

Shapes: C chunks, P positives of a chunk, K candidates of a chunk, M negatives of a positive, D dimension.
"""

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmill.errors import ConfigError
from graphmill.model.built_in import LOSSES, OF_NEGATIVES
from graphmill.model.plug_ins import MASKED, made, takes_weights
from graphmill.model.registry import LOSS_FUNCTIONS


class LossGradient(NamedTuple):
    """Losses of the positives, [C, P], or their sum [] by a plug-in; and the gradients of all scores."""

    loss_CP: Tensor
    pos_CP: Tensor
    neg_CPM: Tensor


def loss_gradient(
    loss_fn: str, margin: float, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor
) -> LossGradient:
    """Compute weighted losses and their gradient; overwrites `neg_CPM`. A failing plug-in: ConfigError."""
    if loss_fn not in LOSSES:
        return _by_autograd(loss_fn, margin, pos_CP, neg_CPM, weight_CP)
    if loss_fn in OF_NEGATIVES and neg_CPM.shape[-1] == 0:
        return LossGradient(torch.zeros_like(pos_CP), torch.zeros_like(pos_CP), neg_CPM)
    return _GRADIENTS[loss_fn](margin, pos_CP, neg_CPM, weight_CP)


def _ranking(margin: float, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor) -> LossGradient:
    violation_CPM = neg_CPM.sub_((pos_CP - margin).unsqueeze(-1)).clamp_min_(0)
    loss_CP = violation_CPM.sum(-1) * weight_CP
    gradient_CPM = violation_CPM.sign_().mul_(weight_CP.unsqueeze(-1))
    return LossGradient(loss_CP, -gradient_CPM.sum(-1), gradient_CPM)


def _logistic(_: float, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor) -> LossGradient:
    share_CP = weight_CP / max(neg_CPM.shape[-1], 1)
    loss_CP = F.softplus(-pos_CP) * weight_CP + F.softplus(neg_CPM).sum(-1) * share_CP
    return LossGradient(
        loss_CP, -torch.sigmoid(-pos_CP) * weight_CP, neg_CPM.sigmoid_().mul_(share_CP.unsqueeze(-1))
    )


def _softmax(_: float, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor) -> LossGradient:
    highest_CP = torch.maximum(neg_CPM.amax(-1), pos_CP)
    odds_CPM = neg_CPM.sub_(highest_CP.unsqueeze(-1)).exp_()
    negatives_CP = odds_CPM.sum(-1)
    total_CP = negatives_CP + (pos_CP - highest_CP).exp_()
    # not log(p): p underflows where the positive is far below the best negative
    loss_CP = (highest_CP + total_CP.log() - pos_CP) * weight_CP
    scale_CP = weight_CP / total_CP
    return LossGradient(loss_CP, -negatives_CP * scale_CP, odds_CPM.mul_(scale_CP.unsqueeze(-1)))


_GRADIENTS = {"ranking": _ranking, "logistic": _logistic, "softmax": _softmax}


@lru_cache(maxsize=64)
def _plug_in(class_: type, name: str, margin: float, device: str) -> tuple[nn.Module, bool]:
    """The loss of a user, and whether it takes weights."""
    module = made(LOSS_FUNCTIONS, name, margin=margin).to(device)
    return module, takes_weights(module)


def _by_autograd(
    loss_fn: str, margin: float, pos_CP: Tensor, neg_CPM: Tensor, weight_CP: Tensor
) -> LossGradient:
    class_ = LOSS_FUNCTIONS.get_class(loss_fn)
    module, is_weighted = _plug_in(class_, loss_fn, margin, str(pos_CP.device))
    pos_P, neg_PM = pos_CP.detach().flatten(), neg_CPM.detach().flatten(0, 1)
    weight_P = weight_CP.flatten()
    with torch.enable_grad():
        leaves = pos_P.clone().requires_grad_(), neg_PM.clone().requires_grad_()
        loss = module(*leaves, weight_P) if is_weighted else module(*leaves)
        if not isinstance(loss, Tensor) or loss.dim():
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"loss_fn {loss_fn!r}: expected one number, the sum of losses, found {shape}")
        if not is_weighted:
            loss = loss * _one_weight(loss_fn, weight_P)
        gradients: Sequence[Tensor | None] = (None, None)
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    pos, neg = (
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    )
    neg = neg.masked_fill(neg_PM == MASKED, 0)  # the gradient of a sum has one number in memory: not in place
    return LossGradient(loss.detach(), pos.view_as(pos_CP), neg.view_as(neg_CPM))


def _one_weight(loss_fn: str, weight_P: Tensor) -> Tensor:
    if len(weight_P) and not bool((weight_P == weight_P[0]).all()):
        raise ConfigError(
            f"loss_fn {loss_fn!r}: the edges have weights, and forward(pos_scores, neg_scores) takes none; "
            "give it a third argument, weight"
        )
    return weight_P[:1].sum()


def mask_own(neg_CPM: Tensor, rows_CK: Tensor, num_positives: int, first_negative: int) -> Tensor:
    """Mask the scores of negatives that are the edge's own entity, in place; return the mask [C, P, M].

    `rows_CK` are the candidates' rows: the first `num_positives` are the edges' own, those from
    `first_negative` on are negatives.
    """
    own_CPM = rows_CK[:, :num_positives].unsqueeze(2) == rows_CK[:, first_negative:].unsqueeze(1)
    neg_CPM.detach().masked_fill_(own_CPM, MASKED)
    return own_CPM


def n3(vectors: tuple[Tensor, ...], weight: Tensor | float) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute each vector's cost of N3, weight x sum of |x|^3: [...], and its gradient, 3 weight x |x|.

    `vectors` are one tensor [..., D], or the parts of complex numbers. `weight` broadcasts against them.
    """
    if len(vectors) == 1:
        modulus = vectors[0].abs()
    else:
        modulus = reduce(lambda square, x: square.addcmul(x, x), vectors[1:], vectors[0].square()).sqrt_()
    slope = modulus * weight
    return (slope * modulus * modulus).sum(-1), tuple(3 * part * slope for part in vectors)


def n3_weights(weight_K1: Tensor, vectors_KD: Tensor, *, has_popularity: bool) -> Tensor:
    """Return the weights of N3, [K, 1]; or [K, D] with 0 for element 0, if that learns the popularity."""
    if not has_popularity:
        return weight_K1
    weight_KD = weight_K1.repeat(1, vectors_KD.shape[1])
    weight_KD[:, 0] = 0
    return weight_KD
