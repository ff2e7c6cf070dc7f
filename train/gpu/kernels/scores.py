"""Kernels that compare queries with candidates, a program for each tile: no score is ever in memory.

Products take operands of the queries' dtype and add up in float32; float32 operands multiply in tf32 or, with
`exact`, as float32. Softmax runs along the candidates as in flash attention (arXiv:2205.14135): attention's
output is the query's gradient here.

Tiles: BP queries, BK candidates, DB columns, the power of two that holds D. Kernel, operands and dimension
decide: wgmma wants 64 rows; a block has 64 K registers, and 227 KB of shared memory on Hopper, less before.
Rows of operands are W numbers wide, W >= D: each begins at a multiple of 16 bytes.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from train.gpu.reference import LOSSES, Compared, KernelComparison

HOPPER = 90  # compute capability 9.0
Kernel = Literal["query_gradients", "candidate_gradients"]
Operands = Literal["bfloat16", "tf32", "float32"]


class Tile(NamedTuple):
    """Sizes of a program's tile, its warps, and how many tiles are loaded ahead."""

    BP: int
    BK: int
    num_warps: int
    num_stages: int


ByWidth = dict[int, tuple[Tile, ...]]
# No matrix unit multiplies float32.
_FLOAT32: ByWidth = dict.fromkeys((128, 256), (Tile(16, 16, 8, 1),))
_FLOAT32 |= dict.fromkeys((512, 1024), (Tile(16, 16, 16, 1),))
_TF32: ByWidth = {
    128: (Tile(64, 64, 4, 2),),
    256: (Tile(64, 32, 8, 2),),
    512: (Tile(32, 32, 8, 1),),
    1024: (Tile(16, 16, 8, 1),),
}
_BFLOAT16: ByWidth = {128: (Tile(64, 64, 4, 3),), 256: (Tile(64, 64, 4, 2), Tile(64, 32, 8, 2))}
# By the width that holds the dimension; the second tile is for GPUs before and after Hopper.
TILES: dict[Kernel, dict[Operands, ByWidth]] = {
    "query_gradients": {
        "bfloat16": _BFLOAT16 | {512: (Tile(64, 64, 8, 2), Tile(32, 32, 8, 2)), 1024: (Tile(16, 32, 8, 1),)},
        "tf32": _TF32,
        "float32": _FLOAT32,
    },
    "candidate_gradients": {
        "bfloat16": _BFLOAT16 | {512: (Tile(128, 64, 8, 1), Tile(64, 32, 8, 2)), 1024: (Tile(32, 16, 8, 1),)},
        "tf32": _TF32,
        "float32": _FLOAT32,
    },
}


def operands_of(dtype: torch.dtype, *, exact: bool) -> Operands:
    """Name the way in which operands of a type multiply."""
    return "bfloat16" if dtype.itemsize == 2 else "float32" if exact else "tf32"


def sizes_of(kernel: Kernel, dimension: int, dtype: torch.dtype, *, exact: bool) -> dict[str, int]:
    """The sizes that a kernel is launched with on this GPU, for operands [..., D]."""
    width = width_of(dimension)
    tiles = TILES[kernel][operands_of(dtype, exact=exact)][max(width, 128)]
    return {"DB": width, **tiles[0 if _architecture() == HOPPER else -1]._asdict()}


def shared_bytes(dimension: int, dtype: torch.dtype, *, exact: bool) -> int:
    """The most shared memory that a block of either kernel takes on this GPU."""
    needed: list[int] = []
    for kernel in TILES:
        sizes = sizes_of(kernel, dimension, dtype, exact=exact)
        own, others = (
            (sizes["BP"], sizes["BK"]) if kernel == "query_gradients" else (sizes["BK"], sizes["BP"])
        )
        # Only wgmma on bfloat16 reads a tile and its transpose from one copy.
        at_once = 1 if dtype.itemsize == 2 and min(own, others) >= 64 else 2
        rows = own + max(sizes["num_stages"], at_once) * others
        score = dtype.itemsize * (3 if _architecture() >= 100 else 1)
        needed.append(rows * sizes["DB"] * dtype.itemsize + score * own * others + 16 * (own + others))
    return max(needed)


def width_of(dimension: int) -> int:
    """The columns of a tile."""
    return 1 << max(dimension - 1, 15).bit_length()


def _architecture() -> int:
    if triton.knobs.runtime.interpret:
        return HOPPER
    architecture: int = driver.active.get_current_target().arch
    return architecture


# Compiled for only where a step has several chunks: the last edges of a relation, or of a bucket, make one
# chunk of any size, and a compilation takes a second.
_SIZES = ["P", "K", "FIRST"]
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)  # instead of minus infinity, whose differences are NaN


@triton.jit
def _operands(pointer, row, NUM, W: tl.constexpr, DB: tl.constexpr, MASKED: tl.constexpr):
    """Load some of the NUM rows of a chunk. Offsets are within the chunk: 32 bits save registers."""
    column = tl.arange(0, DB)
    at = pointer + (row[:, None] * W + column[None, :])
    inside = (column < W)[None, :]
    if MASKED:
        return tl.load(at, mask=(row < NUM)[:, None] & inside, other=0.0)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _put(pointer, row, value, NUM, D: tl.constexpr, DB: tl.constexpr):
    column = tl.arange(0, DB)
    mask = (row < NUM)[:, None] & (column < D)[None, :]
    tl.store(pointer + (row[:, None] * D + column[None, :]), value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _numbers(pointer, place, NUM, other, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointer + place, mask=place < NUM, other=other)
    return tl.load(pointer + place)


@triton.jit
def _compare(
    q, own_score, w, candidate, rows, p, k0, best, total, cost, above, violating, accumulated,
    margin, share, P, K, FIRST, LOSS: tl.constexpr, W: tl.constexpr, DB: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compare queries with a tile of candidates: the state so far in, the new state out."""
    k = k0 + tl.arange(0, BK)
    c = _operands(candidate, k, K, W, DB, MASKED)
    score = tl.dot(q, tl.trans(c), input_precision=PRECISION)
    own = _numbers(rows, p, P, -1, MASKED)
    real = own[:, None] != _numbers(rows, k, K, -1, MASKED)[None, :]
    if MASKED:
        real = real & ((k >= FIRST) & (k < K))[None, :]
    score = tl.where(real, score, LOWEST)
    above += tl.sum(tl.where(score > own_score[:, None], 1.0, 0.0), axis=1)
    if LOSS == 0:
        better = tl.maximum(best, tl.max(score, axis=1))
        pulls = tl.exp2(score * LOG2_E - (better * LOG2_E)[:, None])
        shrink = tl.exp2((best - better) * LOG2_E)
        total = total * shrink + tl.sum(pulls, axis=1)
        accumulated = accumulated * shrink[:, None]
        best = better
    elif LOSS == 1:
        score = tl.maximum(score, -80.0)  # of which the exponential is finite
        pulls = tl.sigmoid(score) * (w * share)[:, None]
        cost += tl.sum(_softplus(score), axis=1)
    else:
        excess = tl.maximum(score + (margin - own_score)[:, None], 0.0)
        pulls = tl.where(excess > 0, w[:, None], 0.0)
        cost += tl.sum(excess, axis=1)
        violating += tl.sum(tl.where(excess > 0, 1.0, 0.0), axis=1)
    accumulated = tl.dot(pulls.to(c.dtype), c, accumulated, input_precision=PRECISION)
    return best, total, cost, above, violating, accumulated


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit(do_not_specialize=_SIZES)
def _query_gradients(
    query, candidate, rows, weight, loss, violators, positive, shift, pull, gradient, margin, share,
    P, K, FIRST, LOSS: tl.constexpr, D: tl.constexpr, W: tl.constexpr, DB: tl.constexpr, BP: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    # Consecutive programs work on one chunk, and share its candidates.
    chunk = (tl.program_id(0) // tl.cdiv(P, BP)).to(tl.int64)
    query += chunk * P * W
    candidate += chunk * K * W
    rows += chunk * K
    p = tl.program_id(0) % tl.cdiv(P, BP) * BP + tl.arange(0, BP)
    q = _operands(query, p, P, W, DB, MASKED)
    own = _operands(candidate, p, P, W, DB, MASKED)
    own_score = tl.sum(q.to(tl.float32) * own.to(tl.float32), axis=1)
    w = tl.load(weight + chunk * P + p, mask=p < P, other=1.0)
    best = own_score
    total = tl.full([BP], 1.0, tl.float32)  # of exponentials, including the positive's
    cost = tl.zeros([BP], tl.float32)
    above = tl.zeros([BP], tl.float32)
    violating = tl.zeros([BP], tl.float32)
    accumulated = tl.zeros([BP, DB], tl.float32)
    stop = tl.cdiv(K, BK) * BK if MASKED else K // BK * BK
    for k0 in range(FIRST // BK * BK, stop, BK):
        best, total, cost, above, violating, accumulated = _compare(
            q, own_score, w, candidate, rows, p, k0, best, total, cost, above, violating, accumulated,
            margin, share, P, K, FIRST, LOSS, W, DB, BK, PRECISION, MASKED,
        )  # fmt: skip
    if not MASKED and K % BK != 0:
        best, total, cost, above, violating, accumulated = _compare(
            q, own_score, w, candidate, rows, p, stop, best, total, cost, above, violating, accumulated,
            margin, share, P, K, FIRST, LOSS, W, DB, BK, PRECISION, True,
        )  # fmt: skip
    norm = best + tl.log(total)
    if LOSS == 0:
        accumulated = accumulated * (w / total)[:, None]
        cost = norm - own_score
        own_pull = tl.exp(own_score - norm) - 1.0
    elif LOSS == 1:
        cost = cost * share + _softplus(-own_score)
        own_pull = -tl.sigmoid(-own_score)
    else:
        own_pull = -violating
    own_pull = own_pull * w
    # Loaded again: kept from the beginning they would take registers from the loop.
    accumulated += own_pull[:, None] * _operands(candidate, p, P, W, DB, MASKED).to(tl.float32)
    _put(gradient + chunk * P * D, p, accumulated, P, D, DB)
    out = chunk * P + p
    tl.store(loss + out, cost * w, mask=p < P)
    tl.store(violators + out, above, mask=p < P)
    tl.store(positive + out, own_score, mask=p < P)
    tl.store(shift + out, norm * LOG2_E - tl.log2(w), mask=p < P)
    tl.store(pull + out, own_pull, mask=p < P)


def query_gradients(comparison: KernelComparison) -> Compared:
    """See reference.query_gradients."""
    query_CPD, candidate_CKD = comparison.query_CPD, comparison.candidate_CKD
    sizes = _launched_with("query_gradients", comparison)
    chunks, positives, _ = query_CPD.shape
    loss_CP, violators_CP, positive_CP, shift_CP, pull_CP = torch.empty(
        5, chunks, positives, device=query_CPD.device
    )
    gradient_CPD = torch.empty(query_CPD.shape, dtype=query_CPD.dtype, device=query_CPD.device)
    _query_gradients[triton.cdiv(positives, sizes["BP"]) * chunks,](
        query_CPD, candidate_CKD, comparison.rows_CK, comparison.weight_CP, loss_CP, violators_CP,
        positive_CP, shift_CP, pull_CP, gradient_CPD, comparison.margin, _share(comparison), **sizes,
    )  # fmt: skip
    return Compared(loss_CP, violators_CP, gradient_CPD, pull_CP, (positive_CP, shift_CP))


def _launched_with(kernel: Kernel, comparison: KernelComparison) -> dict[str, Any]:
    """Arguments that the kernels are compiled for, and sizes of the problem."""
    chunks, positives, dimension = comparison.query_CPD.shape
    numbers = dict(zip(_SIZES, (positives, comparison.rows_CK.shape[1], comparison.first), strict=True))
    tile = sizes_of(kernel, dimension, comparison.query_CPD.dtype, exact=comparison.exact)
    # Whole tiles need no mask, but for the last candidates.
    whole = chunks > 1 and positives % max(tile["BP"], tile["BK"]) == 0 and comparison.first % tile["BK"] == 0
    return {
        "LOSS": LOSSES[comparison.loss],
        "PRECISION": "ieee" if comparison.exact else "tf32",
        "MASKED": not whole,
        "D": dimension,
        "W": comparison.query_CPD.stride(1),
        **{name: tl.constexpr(number) if chunks > 1 else number for name, number in numbers.items()},
        **tile,
    }


def _share(comparison: KernelComparison) -> float:
    """The weight of each negative in logistic's mean."""
    return 1.0 / max(comparison.rows_CK.shape[1] - comparison.first, 1)


@triton.jit(do_not_specialize=_SIZES)
def _candidate_gradients(
    query, candidate, rows, weight, positive, shift, gradient, margin, share,
    P, K, FIRST, LOSS: tl.constexpr, D: tl.constexpr, W: tl.constexpr, DB: tl.constexpr, BP: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(K, BK) - FIRST // BK
    chunk = (tl.program_id(0) // tiles).to(tl.int64)
    query += chunk * P * W
    candidate += chunk * K * W
    rows += chunk * K
    weight += chunk * P
    positive += chunk * P
    shift += chunk * P
    k = (tl.program_id(0) % tiles + FIRST // BK) * BK + tl.arange(0, BK)
    c = _operands(candidate, k, K, W, DB, True)
    other = tl.load(rows + k, mask=k < K, other=-1)
    accumulated = tl.zeros([BK, DB], tl.float32)
    for p0 in range(0, P, BP):
        p = p0 + tl.arange(0, BP)
        q = _operands(query, p, P, W, DB, MASKED)  # zeros beyond the last: they pull nothing
        score = tl.dot(q, tl.trans(c), input_precision=PRECISION)
        if LOSS == 0:
            pulls = tl.exp2(score * LOG2_E - _numbers(shift, p, P, 0.0, MASKED)[:, None])
        elif LOSS == 1:
            pulls = tl.sigmoid(score) * (_numbers(weight, p, P, 0.0, MASKED) * share)[:, None]
        else:
            least = _numbers(positive, p, P, 0.0, MASKED) - margin
            w = _numbers(weight, p, P, 0.0, MASKED)
            pulls = tl.where(score > least[:, None], w[:, None], 0.0)
        own = _numbers(rows, p, P, -1, MASKED)
        pulls = tl.where(own[:, None] != other[None, :], pulls, 0.0)
        accumulated = tl.dot(tl.trans(pulls.to(q.dtype)), q, accumulated, input_precision=PRECISION)
    column = tl.arange(0, DB)
    mask = ((k >= FIRST) & (k < K))[:, None] & (column < D)[None, :]
    tl.store(gradient + chunk * K * D + (k[:, None] * D + column[None, :]), accumulated, mask=mask)


def candidate_gradients(comparison: KernelComparison, saved: tuple[Tensor, ...], out_CKD: Tensor) -> None:
    """See reference.candidate_gradients."""
    positive_CP, shift_CP = saved
    sizes = _launched_with("candidate_gradients", comparison)
    num_chunks, num_candidates = comparison.rows_CK.shape
    num_tiles = triton.cdiv(num_candidates, sizes["BK"]) - comparison.first // sizes["BK"]
    if num_tiles and num_candidates > comparison.first:
        _candidate_gradients[num_tiles * num_chunks,](
            comparison.query_CPD, comparison.candidate_CKD, comparison.rows_CK, comparison.weight_CP,
            positive_CP, shift_CP, out_CKD, comparison.margin, _share(comparison), **sizes,
        )  # fmt: skip
