"""Comparators: the similarity of two vectors a and b; a higher score is a likelier edge.

With `bias`, the first coordinate of each vector is added to the score and left out of the comparison.
`prepare` runs once for each vector, however many vectors it is compared with. Formulas take tensors of torch
and arrays of numpy. Comparators of users are found by name in `registry`; they may tell the sides apart.
Source: docs/formats/pbg_v1.md.

Shapes: D dimension, P queries, N candidates, `...` any number of leading dimensions.
"""

from typing import Any

import numpy as np

from graphmill.model.built_in import COMPARATORS, Array, library

SMALLEST_SQUARE = 1e-30  # keeps the gradients of norms and distances finite at zero


def is_dot(comparator: str, bias: bool) -> bool:
    """Tell whether the score of two prepared vectors is their dot product."""
    return comparator in COMPARATORS and COMPARATORS[comparator].is_product and not bias


def prepare(comparator: str, bias: bool, vectors: Array) -> Array:
    """Make vectors [..., D] ready for the scores below: for cos, scale them to length 1."""
    built_in = COMPARATORS.get(comparator)
    if built_in and not built_in.is_unit:
        return vectors
    if bias:
        compared = prepare(comparator, False, vectors[..., 1:])
        prepared: Array = library(vectors).concatenate([vectors[..., :1], compared], -1)
        return prepared
    if built_in:
        return vectors / _root(_square_length(vectors))[..., None]
    made: Array = _plug_ins().prepare(comparator, vectors)
    return made


def edge_scores(comparator: str, bias: bool, a: Array, b: Array, *, candidates_are_lhs: bool = True) -> Array:
    """Score pairs of prepared vectors, queries `a` and candidates `b`: [..., D] and [..., D] -> [...]."""
    roles = {"candidates_are_lhs": candidates_are_lhs}
    if bias:
        return edge_scores(comparator, False, a[..., 1:], b[..., 1:], **roles) + a[..., 0] + b[..., 0]
    if comparator not in COMPARATORS:
        scores: Array = _plug_ins().edge_scores(comparator, a, b, **roles)
        return scores
    if COMPARATORS[comparator].is_product:
        product: Array = (a * b).sum(-1)
        return product
    return _negative_distance(comparator, _square_length(a - b))


def matrix_scores(
    comparator: str,
    bias: bool,
    queries: Array,
    candidates: Array,
    *,
    half: bool = False,
    candidates_are_lhs: bool = True,
) -> Array:
    """Score every query against every candidate: prepared [..., P, D] and [..., N, D] -> [..., P, N].

    With `half`, for tensors alone, the matrix product and its gradients take operands in bfloat16 (8 bits of
    precision). The result is a new array that no gradient refers to: a caller may overwrite it.
    """
    roles = {"candidates_are_lhs": candidates_are_lhs}
    if bias:
        scores = matrix_scores(comparator, False, queries[..., 1:], candidates[..., 1:], half=half, **roles)
        return scores + queries[..., :1] + candidates[..., 0][..., None, :]
    if comparator not in COMPARATORS:
        score: Array = _plug_ins().matrix_scores(comparator, queries, candidates, **roles)
        return score
    is_product, dtype = COMPARATORS[comparator].is_product, queries.dtype
    if not is_product and isinstance(queries, np.ndarray):  # float32 would lose distances of near vectors
        queries, candidates = queries.astype(np.float64), candidates.astype(np.float64)
    product = _half_product(queries, candidates) if half else queries @ candidates.mT
    if is_product:
        return product
    square = _square_length(queries)[..., None] + _square_length(candidates)[..., None, :] - 2 * product
    scores = _negative_distance(comparator, square)
    return scores.astype(dtype) if isinstance(scores, np.ndarray) else scores


def _plug_ins() -> Any:
    from graphmill.model import plug_ins  # imports torch

    return plug_ins


def _half_product(queries: Any, candidates: Any) -> Any:
    return (queries.bfloat16() @ candidates.bfloat16().mT).to(queries.dtype)


def _negative_distance(comparator: str, square: Array) -> Array:
    return -_root(square) if COMPARATORS[comparator].is_root else -square


def _square_length(x: Array) -> Array:
    square: Array = library(x).square(x).sum(-1)
    return square


def _root(square: Array) -> Array:
    root: Array = library(square).sqrt(library(square).clip(square, SMALLEST_SQUARE, None))
    return root
