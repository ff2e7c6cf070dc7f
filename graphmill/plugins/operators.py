"""Checks of operators, of static and of dynamic relations; pieces of all checks.

Shapes: D dimension, R relations, C chunks, P positives, N negatives, `...` any.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from graphmill.model.operators import operator_of

RELATIONS = 4
Failures = Iterator[str]  # a line for each check that fails


def differentiable(compute: Callable[..., Tensor], *inputs: Tensor) -> Failures:
    """Compare the gradients of a result with differences of the result."""
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
    if not compute(*leaves).requires_grad:
        yield "expected a result with a gradient, found one without"
        return
    try:
        torch.autograd.gradcheck(compute, leaves)
    except RuntimeError as error:
        yield f"gradients differ from differences of the result: {str(error).splitlines()[0]}"


def same(what: str, actual: Tensor, expected: Tensor) -> Failures:
    """Compare numbers, and say `what` was expected."""
    if actual.shape != expected.shape:
        yield f"expected the shape {shape(expected)} of {what}, found {shape(actual)}"
    elif actual.numel() and not torch.allclose(actual, expected, rtol=1e-6, atol=1e-8):
        difference = (actual - expected).abs().max().item()
        yield f"expected the numbers of {what}, found a difference of {difference:.3g}"


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    """Draw random numbers of a shape."""
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def shape(value: Any) -> Any:
    """Return the shape of a tensor, or the type of something else, for a message."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def operator(
    make: partial[Any], reference: Any, dimension: int, draw: torch.Generator, *, is_dynamic: bool
) -> Failures:
    """Check an operator of static relations, or of dynamic ones."""
    module = make(dimension, *([RELATIONS] if is_dynamic else [])).double()
    parameters = yield from _drawn(module, draw)
    for name, value in parameters.items() if is_dynamic else ():
        if not value.dim() or len(value) != RELATIONS:
            rows = f"a row for each of {RELATIONS} relations"
            yield f"parameter {name!r}: expected {rows}, found {shape(value)}"
            return
    vectors = normal(draw, 2, 3, dimension)
    rel = torch.tensor([[0, 2, 2], [3, 0, 2]])  # relation 1 has no edge

    def apply(vectors: Tensor, *own: Tensor) -> Tensor:
        return _called(module, parameters, own, vectors, *([rel] if is_dynamic else []))

    own = tuple(parameters.values())
    moved = apply(vectors.clone(), *own)
    if moved.shape != vectors.shape:
        yield f"forward: expected the shape {shape(vectors)} of the vectors, found {shape(moved)}"
        return
    if not is_dynamic:
        yield from vector_wise(apply, vectors, own)
    yield from differentiable(apply, vectors, *own)
    yield from _unused(parameters, moved)
    if is_dynamic:
        yield from _rows_of_relations(make, module, reference, vectors, rel, moved)
    elif reference is not None:
        yield from same(f"the operator {reference}", moved, operator_of(reference).apply(vectors, own))


def _rows_of_relations(
    make: partial[Any], module: nn.Module, reference: Any, vectors: Tensor, rel: Tensor, moved: Tensor
) -> Failures:
    """Check that relation k depends on row k alone: a module with this one relation gives the same."""
    dimension, own = vectors.shape[-1], dict(module.named_parameters())
    for relation in sorted(set(rel.flatten().tolist())):
        row = {name: value.detach()[relation : relation + 1] for name, value in own.items()}
        alone = make(dimension, 1).double()
        mine = vectors[rel == relation]
        expected = functional_call(alone, row, (mine, torch.zeros(len(mine), dtype=torch.int64)))
        yield from same(f"relation {relation} by itself", moved[rel == relation], expected)
        if reference is None:
            continue
        values = [value[0] for value in row.values()]
        if isinstance(reference, str):
            static = operator_of(reference).apply(mine, values)
        else:
            other = reference(dimension, **make.keywords).double()
            static = _called(other, dict(other.named_parameters()), values, mine)
        name = reference if isinstance(reference, str) else reference.__name__
        yield from same(f"relation {relation} of {name}", moved[rel == relation], static)


def _drawn(module: nn.Module, draw: torch.Generator) -> Any:
    """Fill the parameters with random numbers; return them by name."""
    for name, value in module.named_parameters():
        if "." in name:
            yield f"parameter {name!r}: expected one of the operator itself, found one of a module inside"
        with torch.no_grad():
            value.copy_(torch.randn(value.shape, generator=draw, dtype=torch.float64))
    return dict(module.named_parameters())


def _called(module: nn.Module, names: Any, values: Sequence[Tensor], *arguments: Tensor) -> Tensor:
    moved: Tensor = functional_call(module, dict(zip(names, values, strict=True)), arguments)
    return moved


def vector_wise(apply: Callable[..., Tensor], vectors: Tensor, own: tuple[Tensor, ...]) -> Failures:
    """Check that each vector is transformed by itself, whatever the shape of the batch."""
    before, whole = vectors.clone(), apply(vectors, *own)
    if not torch.equal(before, vectors):
        yield "forward: expected the vectors unchanged, found that it overwrites them"
    for part in (vectors, vectors[0], vectors[0, 0]):
        moved = apply(part, *own)
        if moved.shape != part.shape:
            yield f"forward: expected the shape {shape(part)} of the vectors, found {shape(moved)}"
            return
    yield from same("one vector by itself", whole[1, 2], apply(vectors[1, 2], *own))
    yield from same("a second call", apply(vectors, *own), whole)


def _unused(parameters: dict[str, Tensor], moved: Tensor) -> Failures:
    if not parameters:
        return
    gradients = torch.autograd.grad(moved.square().sum(), list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            yield f"parameter {name!r}: expected a gradient, found that the result does not depend on it"
