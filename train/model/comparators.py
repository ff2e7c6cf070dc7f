"""Comparators: how alike two vectors are; a higher score is a likelier edge.

    dot         a . b
    cos         a . b / (|a| |b|)
    l2          -|a - b|
    squared_l2  -|a - b|^2

With `bias`, the first coordinate of each vector is added to the score and left out of the comparison.
Vectors go through `prepare` once, whatever number of others they then meet.
Source: docs/formats/pbg_v1.md.

Shapes: D dimension, P queries, N candidates, `...` any number of leading dimensions.
"""

import torch
from torch import Tensor

SMALLEST_SQUARE = 1e-30  # keeps the gradients of norms and distances finite at zero


def prepare(comparator: str, bias: bool, vectors: Tensor) -> Tensor:
    """Make vectors [..., D] ready for the scores below: for cos, scaled to length 1."""
    if comparator != "cos":
        return vectors
    if bias:
        return torch.cat([vectors[..., :1], _unit(vectors[..., 1:])], dim=-1)
    return _unit(vectors)


def edge_scores(comparator: str, bias: bool, a: Tensor, b: Tensor) -> Tensor:
    """Scores of pairs: prepared [..., D] and [..., D] -> [...]."""
    if bias:
        return edge_scores(comparator, False, a[..., 1:], b[..., 1:]) + a[..., 0] + b[..., 0]
    if comparator in ("dot", "cos"):
        return (a * b).sum(-1)
    square = (a - b).square().sum(-1)
    return -square if comparator == "squared_l2" else -_root(square)


def matrix_scores(
    comparator: str, bias: bool, queries: Tensor, candidates: Tensor, *, half: bool = False
) -> Tensor:
    """Scores of every query against every candidate: prepared [..., P, D] and [..., N, D] -> [..., P, N].

    With `half`, the matrix product takes its operands in bfloat16 (8 bits of precision), also for gradients.
    The result is a new tensor that no gradient refers to: a caller may overwrite it.
    """
    if bias:
        scores = matrix_scores(comparator, False, queries[..., 1:], candidates[..., 1:], half=half)
        return scores + queries[..., :1] + candidates[..., 0].unsqueeze(-2)
    if half:
        product = (queries.bfloat16() @ candidates.bfloat16().transpose(-1, -2)).to(queries.dtype)
    else:
        product = queries @ candidates.transpose(-1, -2)
    if comparator in ("dot", "cos"):
        return product
    query_squares = queries.square().sum(-1).unsqueeze(-1)
    square = query_squares + candidates.square().sum(-1).unsqueeze(-2) - 2 * product
    return -square if comparator == "squared_l2" else -_root(square)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / _root(vectors.square().sum(-1, keepdim=True))


def _root(square: Tensor) -> Tensor:
    return square.clamp_min(SMALLEST_SQUARE).sqrt()
