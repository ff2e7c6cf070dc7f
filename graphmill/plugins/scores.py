"""Checks of comparators and losses.

Shapes: D dimension, R relations, C chunks, P positives, N negatives, `...` any.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphmill.model import comparators
from graphmill.model.plug_ins import MASKED, takes_weights
from graphmill.plugins.numbers import Failures, differentiable, normal, same, shape
from graphmill.plugins.operators import vector_wise


def comparator(
    class_: type, reference: Any, dimension: int, draw: torch.Generator, arguments: dict[str, Any]
) -> Failures:
    """Check a comparator."""
    module = class_(**arguments).double()
    if names := [name for name, _ in module.named_parameters()]:
        yield f"parameter {names[0]!r}: expected none, a comparator is not trained"
    yield from vector_wise(module.prepare, normal(draw, 2, 3, dimension), ())
    lhs, rhs = (module.prepare(normal(draw, 2, 3, dimension)) for _ in range(2))
    other_lhs, other_rhs = (module.prepare(normal(draw, 2, num, dimension)) for num in (4, 5))
    found = module(lhs, rhs, other_lhs, other_rhs)
    shapes = [(2, 3), (2, 3, 4), (2, 3, 5)]
    if [tuple(each.shape) for each in found] != shapes:
        yield f"forward: expected scores of shapes {shapes}, found {[tuple(each.shape) for each in found]}"
        return
    pos, lhs_scores, rhs_scores = module(lhs, rhs, lhs, rhs)
    yield from same("the score of the same pair among lhs_neg", pos, lhs_scores.diagonal(dim1=1, dim2=2))
    yield from same("the score of the same pair among rhs_neg", pos, rhs_scores.diagonal(dim1=1, dim2=2))
    yield from same("scores of rhs_pos and lhs_neg, turned", rhs_scores, lhs_scores.transpose(1, 2))
    alone = module(lhs[1:], rhs[1:], other_lhs[1:], other_rhs[1:])
    for each, expected in zip(found, alone, strict=True):
        yield from same("a chunk by itself", each[1:], expected)
    without = module(lhs, rhs, other_lhs[:, :0], other_rhs[:, :0])
    if [tuple(each.shape) for each in without] != [(2, 3), (2, 3, 0), (2, 3, 0)]:
        yield "forward: expected no scores for no negatives"
    yield from differentiable(
        lambda *each: torch.cat([s.flatten() for s in module(*each)]), lhs, rhs, other_lhs, other_rhs
    )
    if reference is not None:
        yield from _as_built_in(module, reference, draw, dimension)


def _as_built_in(module: Any, reference: str, draw: torch.Generator, dimension: int) -> Failures:
    raw = [normal(draw, 2, num, dimension) for num in (3, 3, 4, 5)]
    found = module(*(module.prepare(each) for each in raw))
    lhs, rhs, other_lhs, other_rhs = (comparators.prepare(reference, False, each) for each in raw)
    expected = (
        comparators.edge_scores(reference, False, lhs, rhs),
        comparators.matrix_scores(reference, False, rhs, other_lhs),
        comparators.matrix_scores(reference, False, lhs, other_rhs),
    )
    for ours, theirs in zip(found, expected, strict=True):
        yield from same(f"the comparator {reference}", ours, theirs)


def loss(
    class_: type, reference: Any, dimension: int, draw: torch.Generator, arguments: dict[str, Any]
) -> Failures:
    """Check a loss."""
    module = class_(**arguments).double()
    weighted = takes_weights(module)
    pos, neg = normal(draw, 5), normal(draw, 5, 3)
    weight = 0.5 + torch.rand(5, generator=draw, dtype=torch.float64)

    def total_loss(pos: Tensor, neg: Tensor, weight: Tensor = weight) -> Tensor:
        found: Tensor = module(pos, neg, weight) if weighted else module(pos, neg)
        return found

    found = total_loss(pos, neg)
    if not isinstance(found, Tensor) or found.dim():
        yield f"forward: expected one number, the sum of the losses, found the shape {shape(found)}"
        return
    singles = [total_loss(pos[i : i + 1], neg[i : i + 1], torch.ones_like(pos[:1])) for i in range(len(pos))]
    total = sum(single * (factor if weighted else 1) for single, factor in zip(singles, weight, strict=True))
    what = "the sum of the edges' losses" + (", times their weights" if weighted else "")
    yield from same(what, found, torch.as_tensor(total))
    yield from _masked(total_loss, pos, neg)
    if not bool(torch.isfinite(torch.as_tensor(total_loss(pos, neg[:, :0]))).all()):
        yield "forward: expected a finite loss for edges without negatives"
    yield from differentiable(total_loss, pos, neg)
    if reference is not None:
        name = getattr(reference, "__name__", "the reference")
        yield from same(name, found, reference(pos, neg, weight) if weighted else reference(pos, neg))


def _masked(loss: Callable[..., Tensor], pos: Tensor, neg: Tensor) -> Failures:
    """Check that the loss does not depend on the score of an edge's own entity, which is MASKED."""
    masked, lower = neg.clone(), neg.clone()
    masked[:, 1], lower[:, 1] = MASKED, 2 * MASKED
    if not torch.isfinite(loss(pos, masked)):
        yield f"forward: expected a finite loss with a negative of score {MASKED:g}, an edge's own entity"
    else:
        yield from same(f"negatives of score {2 * MASKED:g}", loss(pos, masked), loss(pos, lower))
