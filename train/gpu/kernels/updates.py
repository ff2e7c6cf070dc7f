"""Kernels that move rows: Adagrad, with gradients of equal rows summed first, or one after the other.

Rows are sorted; a run of equal keys may be as long as the batch (an id in half of all edges, a graph of one
relation). So places are summed in blocks of RUN, these sums in blocks of RUN, and the rest one after the
other: always in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

EPSILON = tl.constexpr(1e-10)
RUN = 32


@triton.jit
def _sum_runs(
    key, order, gradient, partial, T,
    D: tl.constexpr, DB: tl.constexpr, BR: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Within each block of RUN sorted places: the sum of a run of equal keys, at the run's last place."""
    start = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)) * RUN  # of BR blocks
    column = tl.arange(0, DB)
    inside = (column < D)[None, :]
    total = tl.zeros([BR, DB], tl.float32)
    for number in range(RUN):
        place = start + number
        there = place < T
        own = tl.load(key + place, mask=there, other=-1)
        source = tl.load(order + place, mask=there, other=0).to(tl.int64)
        total += tl.load(
            gradient + source[:, None] * D + column[None, :], mask=there[:, None] & inside, other=0.0
        )
        following = tl.load(key + place + 1, mask=place + 1 < T, other=-1)
        ends = there & ((following != own) | (number == RUN - 1))
        tl.store(partial + place[:, None] * D + column[None, :], total, mask=ends[:, None] & inside)
        total = tl.where(ends[:, None], 0.0, total)


@triton.jit
def _sum_blocks(
    key, partial, T, D: tl.constexpr, DB: tl.constexpr, BR: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """At the ends of blocks: the sum of a run's blocks so far, of those within RUN blocks."""
    first = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)) * RUN * RUN + RUN - 1
    column = tl.arange(0, DB)
    inside = (column < D)[None, :]
    total = tl.zeros([BR, DB], tl.float32)
    before = tl.full([BR], -1, tl.int32)
    for number in range(RUN):
        place = first + number * RUN
        there = place < T
        own = tl.load(key + place, mask=there, other=-1)
        at = partial + place[:, None] * D + column[None, :]
        mask = there[:, None] & inside
        total = tl.where((own == before)[:, None], total, 0.0) + tl.load(at, mask=mask, other=0.0)
        tl.store(at, total, mask=mask)
        before = own


@triton.jit
def _adagrad_runs(
    table, sums, key, partial, T, lr,
    ELEMENT: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, BR: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """At the last place of each key: add up its runs, and move its row."""
    rate = tl.load(lr).to(tl.float32)
    last = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    own = tl.load(key + last, mask=last < T, other=-1)
    following = tl.load(key + last + 1, mask=last + 1 < T, other=-1)
    ends = (last < T) & (following != own)
    column = tl.arange(0, DB)
    inside = (column < D)[None, :]
    mask = ends[:, None] & inside
    total = tl.load(partial + last[:, None] * D + column[None, :], mask=mask, other=0.0)
    # The end of the previous block or, at the end of a block, of the previous blocks, if the key is the same.
    place = tl.where(last % RUN == RUN - 1, last // (RUN * RUN) * (RUN * RUN), last // RUN * RUN) - 1
    same = ends & (tl.load(key + place, mask=ends & (place >= 0), other=-1) == own)
    while tl.max(same.to(tl.int32), axis=0) > 0:
        more = same[:, None] & inside
        total += tl.load(partial + place[:, None] * D + column[None, :], mask=more, other=0.0)
        place = place // (RUN * RUN) * (RUN * RUN) - 1
        same = same & (tl.load(key + place, mask=same & (place >= 0), other=-1) == own)
    row = own.to(tl.int64)
    at = row[:, None] * D + column[None, :]
    value = tl.load(table + at, mask=mask, other=0.0)
    if ELEMENT:
        states = tl.load(sums + at, mask=mask, other=0.0) + total * total
        tl.store(sums + at, states, mask=mask)
        value -= rate * total / (tl.sqrt(states) + EPSILON)
    else:
        state = tl.load(sums + row, mask=ends, other=0.0) + tl.sum(total * total, axis=1) / D
        tl.store(sums + row, state, mask=ends)
        value -= rate * total / (tl.sqrt(state) + EPSILON)[:, None]
    tl.store(table + at, value, mask=mask)


def _tile(dimension: int) -> tuple[int, int]:
    """Columns and rows of a program: several rows, so that several loads run at a time."""
    width = triton.next_power_of_2(dimension)
    return width, max(1, 2048 // width)


def update_rows(table_ND: Tensor, sums: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor) -> None:
    """See reference.update_rows: the same sums in the same order every time."""
    num_rows, dimension = gradient_TD.shape
    key_T, order_T = torch.sort(rows_T, stable=True)
    partial_TD = torch.empty_like(gradient_TD)
    width, height = _tile(dimension)
    _sum_runs[triton.cdiv(num_rows, RUN * height),](
        key_T, order_T, gradient_TD, partial_TD, num_rows, dimension, width, height, RUN
    )
    _sum_blocks[triton.cdiv(num_rows, RUN * RUN * height),](
        key_T, partial_TD, num_rows, dimension, width, height, RUN
    )
    _adagrad_runs[triton.cdiv(num_rows, height),](
        table_ND, sums, key_T, partial_TD, num_rows, lr, sums.dim() == 2, dimension, width, height, RUN
    )


@triton.jit
def _scatter(table, sums, rows, gradient, T, lr, D: tl.constexpr, DB: tl.constexpr, BR: tl.constexpr):
    rate = tl.load(lr).to(tl.float32)
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < T
    column = tl.arange(0, DB)
    mask = there[:, None] & (column < D)[None, :]
    row = tl.load(rows + place, mask=there, other=0).to(tl.int64)
    own = tl.load(gradient + place[:, None] * D + column[None, :], mask=mask, other=0.0)
    square = tl.sum(own * own, axis=1) / D
    # The sum before this gradient, plus the gradient's own square: others may have added to the sum since.
    state = tl.atomic_add(sums + row, square, mask=there, sem="relaxed") + square
    state = tl.where(there, state, 1.0)  # a masked atomic returns nothing
    step = -rate * own / (tl.sqrt(state) + EPSILON)[:, None]
    tl.atomic_add(table + row[:, None] * D + column[None, :], step, mask=mask, sem="relaxed")


def update_rows_fast(
    table_ND: Tensor, sums_N: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor
) -> None:
    """See reference.update_rows_fast: no sort; the order, and so the rounding, differs every time."""
    num_rows, dimension = gradient_TD.shape
    width, height = _tile(dimension)
    _scatter[triton.cdiv(num_rows, height),](
        table_ND, sums_N, rows_T, gradient_TD, num_rows, lr, dimension, width, height
    )
