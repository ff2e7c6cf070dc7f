"""Checks of regularizers and negative samplers."""

from typing import Any

import torch
from torch import Tensor, nn

from graphmill.model.abstract import ChunkedEdges
from graphmill.model.plug_ins import with_parameters
from graphmill.plugins.numbers import Failures, described, differentiable, normal, same, shape
from graphmill.plugins.operators import RELATIONS
from graphmill.vocab import Side


def regularizer(
    class_: type, reference: Any, dimension: int, draw: torch.Generator, arguments: dict[str, Any]
) -> Failures:
    """Check a regularizer."""
    src, dst = normal(draw, 5, dimension), normal(draw, 5, dimension)
    rel = torch.tensor([0, 2, 2, 3, 0])
    for number, is_dynamic in ((None, False), (RELATIONS, True)):
        operator = _Diagonal(number, dimension, draw)
        more = (operator, rel) if is_dynamic else (operator,)
        name = "forward_dynamic" if is_dynamic else "forward"
        cost = getattr(class_(0.5, **arguments), name)(src, dst, *more)
        if not isinstance(cost, Tensor) or cost.dim():
            yield f"{name}: expected one number, found the shape {shape(cost)}"
            continue
        if not bool(cost >= 0):
            yield f"{name}: expected a penalty that is not negative, found {float(cost):g}"
        doubled = getattr(class_(1.0, **arguments), name)(src, dst, *more)
        yield from same(f"{name} with half of the weight, twice", cost * 2, doubled)

        def penalty(src: Tensor, dst: Tensor, own: Tensor, *, called: str = name, rest: Any = more) -> Tensor:
            bound = getattr(class_(0.5, **arguments), called)
            return with_parameters(rest[0], {"diagonal": own}, lambda op: bound(src, dst, op, *rest[1:]))

        yield from differentiable(penalty, src, dst, operator.diagonal.detach())
        if reference is not None and not is_dynamic:
            yield from same("the reference", cost, torch.as_tensor(reference(src, dst, operator)) * 0.5)


class _Diagonal(nn.Module):
    """An operator as regularizers see it."""

    def __init__(self, num_relations: int | None, dimension: int, draw: torch.Generator) -> None:
        super().__init__()
        lead = () if num_relations is None else (num_relations,)
        self.dim = dimension
        self.diagonal = nn.Parameter(normal(draw, *lead, dimension))

    def get_operator_params_for_reg(self, rel: Tensor | None = None) -> Tensor:
        return (self.diagonal if rel is None else self.diagonal[rel]).abs()

    def prepare_embs_for_reg(self, embs: Tensor) -> Tensor:
        return embs.abs()


def negative_sampler(
    class_: type, reference: Any, dimension: int, draw: torch.Generator, arguments: dict[str, Any]
) -> Failures:
    """Check a negative sampler."""
    for num_rows, num_negatives in ((50, 7), (1, 2)):
        columns = [torch.randint(num_rows, (3, 4), generator=draw) for _ in range(2)]
        edges = ChunkedEdges(columns[0], columns[1], None, torch.ones(3, 4), 0)
        before = [each.clone() for each in columns]
        sampler = class_(num_negatives, **arguments)
        for side in Side:
            drawn, again = (
                sampler.sample(edges, side, num_rows, torch.Generator().manual_seed(7)) for _ in range(2)
            )
            if (
                not isinstance(drawn, Tensor)
                or drawn.dtype != torch.int64
                or drawn.dim() != 2
                or len(drawn) != 3
            ):
                yield f"sample: expected rows of torch.int64 and shape (3, K), found {described(drawn)}"
                return
            if drawn.numel() and not 0 <= int(drawn.min()) <= int(drawn.max()) < num_rows:
                found = f"{int(drawn.min())} to {int(drawn.max())}"
                yield f"sample: expected rows from 0 to {num_rows - 1}, found {found}"
            if not torch.equal(drawn, again):
                yield "sample: expected the same rows for one seed, found others; draw from `generator` alone"
        if not all(map(torch.equal, before, columns)):
            yield "sample: expected the edges unchanged, found that it overwrites them"
