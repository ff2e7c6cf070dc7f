"""Kernels that compare queries with candidates, a program for each tile: no score is ever in memory.

Products take operands of the queries' dtype and add up in float32; float32 operands multiply in tf32 or, with
`exact`, as float32. Softmax runs along the candidates as in flash attention (arXiv:2205.14135): attention's
output is the query's gradient here.

Tiles: BP queries, BK candidates, DB columns, the power of two that holds D.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from train.gpu.reference import Compared, Comparison

_LOSSES: dict[str, int] = {"softmax": 0, "logistic": 1, "ranking": 2}
# Compiled for only where a step has several chunks: the last edges of a relation, or of a bucket, make one
# chunk of any size, and a compilation takes a second.
_SIZES = ["P", "K", "FIRST"]
LOWEST = tl.constexpr(-1e30)  # instead of minus infinity, whose differences are NaN


class Tile(NamedTuple):
    """Sizes of a program's tile, its warps, and how many tiles are loaded ahead."""

    BP: int
    BK: int
    num_warps: int
    num_stages: int


# By the width that holds the dimension: for operands in bfloat16, in tf32, and in exact float32, which no
# matrix unit multiplies. wgmma wants 64 rows; a block has 64 K registers and 227 KB of shared memory.
Kernel = Literal["query_gradients", "candidate_gradients"]
_EXACT, _EXACT_WIDE = Tile(16, 16, 8, 1), Tile(16, 16, 16, 1)
TILES: dict[Kernel, dict[int, tuple[Tile, Tile, Tile]]] = {
    "query_gradients": {
        128: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), _EXACT),
        256: (Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), _EXACT),
        512: (Tile(32, 32, 8, 2), Tile(32, 32, 8, 1), _EXACT_WIDE),
        1024: (Tile(16, 32, 8, 1), Tile(16, 16, 8, 1), _EXACT_WIDE),
    },
    "candidate_gradients": {
        128: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), _EXACT),
        256: (Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), _EXACT),
        512: (Tile(64, 32, 8, 2), Tile(32, 32, 8, 1), _EXACT_WIDE),
        1024: (Tile(32, 16, 8, 1), Tile(16, 16, 8, 1), _EXACT_WIDE),
    },
}


def sizes_of(kernel: Kernel, dimension: int, dtype: torch.dtype, *, exact: bool) -> dict[str, Any]:
    """The sizes that a score kernel is launched with, for operands [..., D]."""
    width = triton.next_power_of_2(max(dimension, 16))
    half, tf32, float32 = TILES[kernel][max(width, min(TILES[kernel]))]
    tile = half if dtype.itemsize == 2 else float32 if exact else tf32
    return {"DB": width, **tile._asdict()}


def shared_bytes(dimension: int, dtype: torch.dtype, *, exact: bool) -> int:
    """The most shared memory that a block of either score kernel takes."""
    needed: list[int] = []
    for kernel in TILES:
        sizes = sizes_of(kernel, dimension, dtype, exact=exact)
        own, others = (
            (sizes["BP"], sizes["BK"]) if kernel == "query_gradients" else (sizes["BK"], sizes["BP"])
        )
        rows = own + max(sizes["num_stages"], 2) * others
        needed.append(rows * sizes["DB"] * dtype.itemsize + 4 * sizes["BP"] * sizes["BK"] + 1024)
    return max(needed)


@triton.jit
def _operands(pointer, row, NUM, D: tl.constexpr, DB: tl.constexpr):
    """Load some of the NUM rows of a chunk. Offsets are within the chunk: 32 bits save registers."""
    column = tl.arange(0, DB)
    mask = (row < NUM)[:, None] & (column < D)[None, :]
    return tl.load(pointer + (row[:, None] * D + column[None, :]), mask=mask, other=0.0)


@triton.jit
def _put(pointer, row, value, NUM, D: tl.constexpr, DB: tl.constexpr):
    column = tl.arange(0, DB)
    mask = (row < NUM)[:, None] & (column < D)[None, :]
    tl.store(pointer + (row[:, None] * D + column[None, :]), value, mask=mask)


@triton.jit
def _negatives(rows, p, k, P, K, FIRST):
    """Mark the candidates `k` that are negatives of positives `p`."""
    own = tl.load(rows + p, mask=p < P, other=-1)
    other = tl.load(rows + k, mask=k < K, other=-1)
    return ((p < P)[:, None] & ((k >= FIRST) & (k < K))[None, :]) & (own[:, None] != other[None, :])


@triton.jit
def _pulls(score, real, positive, norm, weight, margin, share, LOSS: tl.constexpr):
    """Gradients of the scores of negatives."""
    if LOSS == 0:
        pull = tl.exp(score - norm[:, None]) * weight[:, None]
    elif LOSS == 1:
        pull = tl.sigmoid(score) * (weight * share)[:, None]
    else:
        pull = tl.where(score - positive[:, None] + margin > 0, 1.0, 0.0) * weight[:, None]
    return tl.where(real, pull, 0.0)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit(do_not_specialize=_SIZES)
def _query_gradients(
    query, candidate, rows, weight, loss, violators, positive, norm, pull, gradient, margin, share,
    P, K, FIRST, LOSS: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # Consecutive programs work on one chunk, and share its candidates.
    chunk = (tl.program_id(0) // tl.cdiv(P, BP)).to(tl.int64)
    query += chunk * P * D
    candidate += chunk * K * D
    rows += chunk * K
    p = tl.program_id(0) % tl.cdiv(P, BP) * BP + tl.arange(0, BP)
    q = _operands(query, p, P, D, DB)
    own_score = tl.sum(q.to(tl.float32) * _operands(candidate, p, P, D, DB).to(tl.float32), axis=1)
    w = tl.load(weight + chunk * P + p, mask=p < P, other=0.0)
    highest = own_score
    total = tl.full([BP], 1.0, tl.float32)  # of exponentials, including the positive's
    cost = tl.zeros([BP], tl.float32)
    above = tl.zeros([BP], tl.float32)
    violating = tl.zeros([BP], tl.float32)
    accumulated = tl.zeros([BP, DB], tl.float32)
    for k0 in range(FIRST // BK * BK, K, BK):
        k = k0 + tl.arange(0, BK)
        c = _operands(candidate, k, K, D, DB)
        score = tl.dot(q, tl.trans(c), input_precision=PRECISION)
        real = _negatives(rows, p, k, P, K, FIRST)
        above += tl.sum(tl.where(real & (score > own_score[:, None]), 1.0, 0.0), axis=1)
        if LOSS == 0:
            score = tl.where(real, score, LOWEST)
            higher = tl.maximum(highest, tl.max(score, axis=1))
            odds = tl.exp(score - higher[:, None])
            shrink = tl.exp(highest - higher)
            total = total * shrink + tl.sum(odds, axis=1)
            accumulated = accumulated * shrink[:, None]
            highest = higher
            pulls = odds
        else:
            pulls = _pulls(score, real, own_score, own_score, w, margin, share, LOSS)
            if LOSS == 1:
                cost += tl.sum(tl.where(real, _softplus(score), 0.0), axis=1)
            else:
                excess = tl.where(real, score - own_score[:, None] + margin, 0.0)
                cost += tl.sum(tl.maximum(excess, 0.0), axis=1)
                violating += tl.sum(tl.where(excess > 0, 1.0, 0.0), axis=1)
        accumulated = tl.dot(pulls.to(c.dtype), c, accumulated, input_precision=PRECISION)
    out_norm = highest + tl.log(total)
    if LOSS == 0:
        accumulated = accumulated * (w / total)[:, None]
        cost = out_norm - own_score
        own_pull = tl.exp(own_score - out_norm) - 1.0
    elif LOSS == 1:
        cost = cost * share + _softplus(-own_score)
        own_pull = -tl.sigmoid(-own_score)
    else:
        own_pull = -violating
    own_pull = own_pull * w
    # Loaded again: kept from the beginning they would take registers from the loop.
    accumulated += own_pull[:, None] * _operands(candidate, p, P, D, DB).to(tl.float32)
    _put(gradient + chunk * P * D, p, accumulated, P, D, DB)
    out = chunk * P + p
    tl.store(loss + out, cost * w, mask=p < P)
    tl.store(violators + out, above, mask=p < P)
    tl.store(positive + out, own_score, mask=p < P)
    tl.store(norm + out, out_norm, mask=p < P)
    tl.store(pull + out, own_pull, mask=p < P)


def query_gradients(comparison: Comparison) -> Compared:
    """See reference.query_gradients."""
    query_CPD, candidate_CKD = comparison.query_CPD, comparison.candidate_CKD
    sizes = _launched_with("query_gradients", comparison)
    chunks, positives, _ = query_CPD.shape
    loss_CP, violators_CP, positive_CP, norm_CP, pull_CP = (
        torch.empty(chunks, positives, device=query_CPD.device) for _ in range(5)
    )
    gradient_CPD = torch.empty(query_CPD.shape, device=query_CPD.device)
    _query_gradients[triton.cdiv(positives, sizes["BP"]) * chunks,](
        query_CPD, candidate_CKD, comparison.rows_CK, comparison.weight_CP, loss_CP, violators_CP,
        positive_CP, norm_CP, pull_CP, gradient_CPD, comparison.margin, _share(comparison), **sizes,
    )  # fmt: skip
    loss, violators = (each_CP.sum(dtype=torch.float64) for each_CP in (loss_CP, violators_CP))
    return Compared(loss, violators, gradient_CPD, (positive_CP, norm_CP, pull_CP))


def _launched_with(kernel: Kernel, comparison: Comparison) -> dict[str, Any]:
    """Arguments that the kernels are compiled for, and sizes of the problem."""
    chunks, positives, dimension = comparison.query_CPD.shape
    numbers = dict(zip(_SIZES, (positives, comparison.rows_CK.shape[1], comparison.first), strict=True))
    sizes = {name: tl.constexpr(each) if chunks > 1 else each for name, each in numbers.items()}
    return {
        "LOSS": _LOSSES[comparison.loss],
        "PRECISION": "ieee" if comparison.exact else "tf32",
        "D": dimension,
        **sizes,
        **sizes_of(kernel, dimension, comparison.query_CPD.dtype, exact=comparison.exact),
    }


def _share(comparison: Comparison) -> float:
    """The weight of each negative in logistic's mean."""
    return 1.0 / max(comparison.rows_CK.shape[1] - comparison.first, 1)


@triton.jit(do_not_specialize=_SIZES)
def _candidate_gradients(
    query, candidate, rows, weight, positive, norm, pull, gradient, margin, share,
    P, K, FIRST, LOSS: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    chunk = (tl.program_id(0) // tl.cdiv(K, BK)).to(tl.int64)
    query += chunk * P * D
    rows += chunk * K
    k0 = tl.program_id(0) % tl.cdiv(K, BK) * BK
    k = k0 + tl.arange(0, BK)
    accumulated = tl.zeros([BK, DB], tl.float32)
    if k0 + BK > FIRST:
        c = _operands(candidate + chunk * K * D, k, K, D, DB)
        for p0 in range(0, P, BP):
            p = p0 + tl.arange(0, BP)
            q = _operands(query, p, P, D, DB)
            score = tl.dot(q, tl.trans(c), input_precision=PRECISION)
            real = _negatives(rows, p, k, P, K, FIRST)
            w = tl.load(weight + chunk * P + p, mask=p < P, other=0.0)
            s = tl.load(positive + chunk * P + p, mask=p < P, other=0.0)
            n = tl.load(norm + chunk * P + p, mask=p < P, other=0.0)
            pulls = _pulls(score, real, s, n, w, margin, share, LOSS)
            accumulated = tl.dot(tl.trans(pulls.to(q.dtype)), q, accumulated, input_precision=PRECISION)
    own_pull = tl.load(pull + chunk * P + k, mask=k < P, other=0.0)
    accumulated += own_pull[:, None] * _operands(query, k, P, D, DB).to(tl.float32)
    _put(gradient + chunk * K * D, k, accumulated, K, D, DB)


def candidate_gradients(comparison: Comparison, saved: tuple[Tensor, ...], out_CKD: Tensor) -> None:
    """See reference.candidate_gradients."""
    positive_CP, norm_CP, pull_CP = saved
    sizes = _launched_with("candidate_gradients", comparison)
    num_chunks, num_candidates = comparison.rows_CK.shape
    _candidate_gradients[triton.cdiv(num_candidates, sizes["BK"]) * num_chunks,](
        comparison.query_CPD, comparison.candidate_CKD, comparison.rows_CK, comparison.weight_CP,
        positive_CP, norm_CP, pull_CP, out_CKD, comparison.margin, _share(comparison), **sizes,
    )  # fmt: skip
