"""Pieces of all checks: equal numbers, gradients, random vectors."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

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


def described(value: Any) -> str:
    """Return type and shape of a tensor, or the type of something else, for a message."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
