"""Kernels that rank: count higher and equal scores, tile by tile, without keeping a score.

An edge's own score and the scores of its rivals come from products of one shape, in full float32, so that
ties are exact. Tiles: B queries x B candidates; the product adds up DB columns at a time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = 64  # of candidates per program, at most
SIDE = 64


def _sizes(dimension: int) -> dict[str, int]:
    return {"D": dimension, "DB": min(64, triton.next_power_of_2(max(dimension, 16))), "B": SIDE}


@triton.jit
def _product(left, right, left_row, right_row, there, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr):
    """Scores of B x B pairs of rows; `there` tells which rows of each exist."""
    found_left, found_right = there
    left += left_row.to(tl.int64) * D
    right += right_row.to(tl.int64) * D
    product = tl.zeros([B, B], tl.float32)
    for first in range(0, D, DB):
        column = first + tl.arange(0, DB)
        inside = (column < D)[None, :]
        left_BD = tl.load(left[:, None] + column[None, :], mask=found_left[:, None] & inside, other=0.0)
        right_BD = tl.load(right[:, None] + column[None, :], mask=found_right[:, None] & inside, other=0.0)
        product = tl.dot(left_BD, tl.trans(right_BD), product, input_precision="ieee")
    return product


@triton.jit
def _count(
    query, table, score, greater, equal, Q, N,
    TILES: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # Consecutive programs compare all queries with the same candidates, which stay in the cache.
    q = tl.program_id(0) % tl.cdiv(Q, B) * B + tl.arange(0, B)
    span = tl.program_id(0) // tl.cdiv(Q, B)
    own = tl.load(score + q, mask=q < Q, other=float("inf"))
    more = tl.zeros([B], tl.int32)
    same = tl.zeros([B], tl.int32)
    for tile in range(TILES):
        n = (span * TILES + tile) * B + tl.arange(0, B)
        product = _product(query, table, q, n, (q < Q, n < N), D, DB, B)
        product = tl.where((n < N)[None, :], product, float("-inf"))
        more += tl.sum((product > own[:, None]).to(tl.int32), axis=1)
        same += tl.sum((product == own[:, None]).to(tl.int32), axis=1)
    tl.atomic_add(greater + q, more, mask=q < Q, sem="relaxed")
    tl.atomic_add(equal + q, same, mask=q < Q, sem="relaxed")


def count_above(query_QD: Tensor, table_ND: Tensor, score_Q: Tensor) -> tuple[Tensor, Tensor]:
    """See reference.count_above."""
    sizes = _sizes(table_ND.shape[1])
    greater_Q, equal_Q = (
        torch.zeros(len(query_QD), dtype=torch.int32, device=query_QD.device) for _ in range(2)
    )
    if len(query_QD) and len(table_ND):
        tiles = min(TILES, triton.next_power_of_2(triton.cdiv(len(table_ND), sizes["B"])))
        num_spans = triton.cdiv(len(table_ND), sizes["B"] * tiles)
        _count[triton.cdiv(len(query_QD), sizes["B"]) * num_spans,](
            query_QD, table_ND, score_Q, greater_Q, equal_Q, len(query_QD), len(table_ND), tiles, **sizes
        )
    return greater_Q.long(), equal_Q.long()


@triton.jit
def _pairs(
    query, table, query_of, row_of, score, T, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0) * B + tl.arange(0, B)
    there = pair < T
    q = tl.load(query_of + pair, mask=there, other=0)
    n = tl.load(row_of + pair, mask=there, other=0)
    product = _product(query, table, q, n, (there, there), D, DB, B)
    diagonal = tl.arange(0, B)[:, None] == tl.arange(0, B)[None, :]
    tl.store(score + pair, tl.sum(tl.where(diagonal, product, 0.0), axis=1), mask=there)


def pair_scores(query_QD: Tensor, table_ND: Tensor, query_T: Tensor, row_T: Tensor) -> Tensor:
    """See reference.pair_scores."""
    sizes = _sizes(table_ND.shape[1])
    score_T = torch.empty(len(query_T), device=query_QD.device)
    if len(query_T):
        grid = (triton.cdiv(len(query_T), sizes["B"]),)
        _pairs[grid](query_QD, table_ND, query_T, row_T, score_T, len(query_T), **sizes)
    return score_T
