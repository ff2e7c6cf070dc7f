"""Kernels that score, in Triton: each computes what the function of its name in `reference` defines.

Products multiply on matrix units, in three parts of tf32 that add up to nearly the precision of float32. A
score depends on the two vectors alone, not on the tile that it is computed in: copies tie, to the last bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphmill.gpu.reference import TILE

SPAN = 16  # tiles of candidates per program, at most
WARPS = 8
DEPTH = 32  # columns that a product adds up at a time


@triton.jit
def _upper(x):
    """Round to what tf32 holds."""
    bits = x.to(tl.int32, bitcast=True) + 0x1000
    return ((bits >> 13) << 13).to(tl.float32, bitcast=True)


@triton.jit
def _product(left, right, left_row, right_row, there, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr):
    """Scores of B x B pairs of rows; `there` tells which rows of each exist, the others score 0."""
    is_left, is_right = there
    column = tl.arange(0, DB)
    left += left_row.to(tl.int64)[:, None] * D + column[None, :]
    right += right_row.to(tl.int64)[:, None] * D + column[None, :]
    product = tl.zeros([B, B], tl.float32)
    for first in range(0, D, DB):
        inside = (first + column < D)[None, :]
        left_BD = tl.load(left + first, mask=is_left[:, None] & inside, other=0.0)
        right_BD = tl.load(right + first, mask=is_right[:, None] & inside, other=0.0)
        # By hand: Triton's tf32x3 also guards every score against NaN, and takes twice the instructions.
        upper_left_BD, upper_right_BD = _upper(left_BD), _upper(right_BD)
        upper_right_DB = tl.trans(upper_right_BD)
        lower_right_DB = tl.trans(right_BD - upper_right_BD)
        product = tl.dot(left_BD - upper_left_BD, upper_right_DB, product, input_precision="tf32")
        product = tl.dot(upper_left_BD, lower_right_DB, product, input_precision="tf32")
        product = tl.dot(upper_left_BD, upper_right_DB, product, input_precision="tf32")
    return product


@triton.jit
def _place(Q, N, SPAN: tl.constexpr, B: tl.constexpr):
    """Queries of a program, and its tiles; consecutive programs share the candidates in the cache."""
    q = tl.program_id(0) % tl.cdiv(Q, B) * B + tl.arange(0, B)
    first = tl.program_id(0) // tl.cdiv(Q, B) * SPAN
    return q, first, tl.minimum(first + SPAN, tl.cdiv(N, B))


@triton.jit
def _count(
    query, table, score, greater, equal, Q, N,
    SPAN: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    q, first, last = _place(Q, N, SPAN, B)
    own = tl.load(score + q, mask=q < Q, other=float("inf"))
    more = tl.zeros([B], tl.int32)
    same = tl.zeros([B], tl.int32)
    for tile in range(first, last):
        n = tile * B + tl.arange(0, B)
        product = _product(query, table, q, n, (q < Q, n < N), D, DB, B)
        more += tl.sum((product > own[:, None]).to(tl.int32), axis=1)
        same += tl.sum((product == own[:, None]).to(tl.int32), axis=1)
    missing = tl.maximum(last * B - N, 0)  # rows after the last, which score 0
    more -= tl.where(own < 0, missing, 0)
    same -= tl.where(own == 0, missing, 0)
    tl.atomic_add(greater + q, more, mask=q < Q, sem="relaxed")
    tl.atomic_add(equal + q, same, mask=q < Q, sem="relaxed")


@triton.jit
def _maxima(
    query, table, maxima, Q, N, SPAN: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    q, first, last = _place(Q, N, SPAN, B)
    maxima += q.to(tl.int64) * tl.cdiv(N, B)
    for tile in range(first, last):
        n = tile * B + tl.arange(0, B)
        product = _product(query, table, q, n, (q < Q, n < N), D, DB, B)
        product = tl.where((n < N)[None, :], product, float("-inf"))
        tl.store(maxima + tile, tl.max(product, axis=1), mask=q < Q)


@triton.jit
def _pairs(
    query, table, query_of, row_of, score, P, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0) * B + tl.arange(0, B)
    there = pair < P
    q = tl.load(query_of + pair, mask=there, other=0)
    n = tl.load(row_of + pair, mask=there, other=0)
    product = _product(query, table, q, n, (there, there), D, DB, B)
    diagonal = tl.arange(0, B)[:, None] == tl.arange(0, B)[None, :]
    tl.store(score + pair, tl.sum(tl.where(diagonal, product, 0.0), axis=1), mask=there)


@triton.jit
def _tiles(
    query, table, query_of, tile_of, score, N, D: tl.constexpr, DB: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    n = tl.load(tile_of + pair) * B + tl.arange(0, B)
    column = tl.arange(0, DB)
    query += tl.load(query_of + pair) * D + column
    table += n.to(tl.int64)[:, None] * D + column[None, :]
    sums = tl.zeros([B, DB], tl.float32)
    for first in range(0, D, DB):
        inside = first + column < D
        query_D = tl.load(query + first, mask=inside, other=0.0)
        sums += query_D[None, :] * tl.load(table + first, mask=(n < N)[:, None] & inside[None, :], other=0.0)
    out = tl.where(n < N, tl.sum(sums, axis=1), float("-inf"))
    tl.store(score + pair * B + tl.arange(0, B), out)


def count_above(query_QD: Tensor, table_ND: Tensor, score_Q: Tensor) -> tuple[Tensor, Tensor]:
    """See reference.count_above."""
    num_queries, num_rows = len(query_QD), len(table_ND)
    greater_Q, equal_Q = (
        torch.zeros(num_queries, dtype=torch.int32, device=query_QD.device) for _ in range(2)
    )
    if num_queries and num_rows:
        arguments = query_QD, table_ND, score_Q, greater_Q, equal_Q, num_queries, num_rows
        _count[_num_programs(num_queries, num_rows),](*arguments, SPAN, **_sizes(table_ND))
    return greater_Q.long(), equal_Q.long()


def pair_scores(query_QD: Tensor, table_ND: Tensor, query_P: Tensor, row_P: Tensor) -> Tensor:
    """See reference.pair_scores."""
    score_P = torch.empty(len(query_P), device=query_QD.device)
    if len(query_P):
        grid = (triton.cdiv(len(query_P), TILE),)
        _pairs[grid](query_QD, table_ND, query_P, row_P, score_P, len(query_P), **_sizes(table_ND))
    return score_P


def tile_maxima(query_QD: Tensor, table_ND: Tensor) -> Tensor:
    """See reference.tile_maxima."""
    num_queries, num_rows = len(query_QD), len(table_ND)
    maxima_QT = torch.empty(num_queries, triton.cdiv(num_rows, TILE), device=query_QD.device)
    if maxima_QT.numel():
        arguments = query_QD, table_ND, maxima_QT, num_queries, num_rows
        _maxima[_num_programs(num_queries, num_rows),](*arguments, SPAN, **_sizes(table_ND))
    return maxima_QT


def tile_scores(query_QD: Tensor, table_ND: Tensor, query_P: Tensor, tile_P: Tensor) -> Tensor:
    """See reference.tile_scores."""
    score_PB = torch.empty(len(query_P), TILE, device=query_QD.device)
    if len(query_P):
        arguments = query_QD, table_ND, query_P, tile_P, score_PB, len(table_ND)
        _tiles[len(query_P),](*arguments, **_sizes(table_ND))
    return score_PB


def _sizes(table_ND: Tensor) -> dict[str, int]:
    return {"D": table_ND.shape[1], "DB": DEPTH, "B": TILE, "num_warps": WARPS}


def _num_programs(num_queries: int, num_rows: int) -> int:
    num_programs: int = triton.cdiv(num_queries, TILE) * triton.cdiv(num_rows, TILE * SPAN)
    return num_programs
