"""Kernels that move rows: Adagrad, with gradients of equal rows summed first, or one after the other.

Rows are sorted, so gradients of one row are a run of places; a run may be as long as the batch (an id in half
of all edges, a graph of one relation). A block of RUN places moves the rows whose runs lie within it. Of the
runs that it shares with its neighbours it leaves the sums, two at most, and the same kernel adds these up,
RUN at a time, until one block holds all of them. The order of additions is always the same.

Places of a block come one after the other, each after some trips to memory: a block takes half a microsecond
to a whole one per place. So the sums that are left, of which there are few, come in shorter blocks.
"""

import triton
import triton.language as tl
from torch import Tensor

from train.gpu.reference import Runs

EPSILON = tl.constexpr(1e-10)
RUN = 32
RUN_LEFT = 8  # where sums that were left are added


@triton.jit
def _sum_runs(
    table, sums, key, order, gradient, key_left, left, T, lr, RUN: tl.constexpr, ORDERED: tl.constexpr,
    ELEMENT: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Sum runs of equal keys in BR blocks; a key below 0 is no row."""
    rate = tl.load(lr).to(tl.float32)
    block = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    start = block * RUN
    column = tl.arange(0, DB)
    inside = (column < D)[None, :]
    total = tl.zeros([BR, DB], tl.float32)
    own = tl.load(key + start, mask=start < T, other=-1)
    before = tl.load(key + start - 1, mask=(start > 0) & (start <= T), other=-1)
    is_open = own == before  # the run has begun in an earlier block
    key_head = tl.full([BR], -1, tl.int32)
    key_tail = tl.full([BR], -1, tl.int32)
    head = left + 2 * block[:, None] * D + column[None, :]
    for number in range(RUN):
        place = start + number
        there = (place < T) & (own >= 0)
        source = place
        if not ORDERED:
            source = tl.load(order + place, mask=there, other=0).to(tl.int64)
        at = gradient + source[:, None] * D + column[None, :]
        total += tl.load(at, mask=there[:, None] & inside, other=0.0).to(tl.float32)
        following = tl.load(key + place + 1, mask=place + 1 < T, other=-1)
        ends = there & (following != own)
        is_last = there & (number == RUN - 1)
        begun_here = ends & ~is_open
        _move(table, sums, own, total, begun_here, column, inside, rate, ELEMENT, D)
        # The run began before the block, or goes on after it.
        to_head = is_open & (ends | is_last)
        to_tail = is_last & ~ends
        key_head = tl.where(to_head, own, key_head)
        key_tail = tl.where(to_tail, own, key_tail)
        tl.store(head, total, mask=to_head[:, None] & inside)
        rest = tl.where(to_head[:, None], 0.0, total)
        tl.store(head + D, rest, mask=to_tail[:, None] & inside)
        total = tl.where(ends[:, None], 0.0, total)
        is_open = is_open & (following == own)
        own = following
    tl.store(key_left + 2 * block, key_head, mask=start < T)
    tl.store(key_left + 2 * block + 1, key_tail, mask=start < T)


@triton.jit
def _move(table, sums, own, total, moves, column, inside, rate, ELEMENT: tl.constexpr, D: tl.constexpr):
    row = own.to(tl.int64)
    at = row[:, None] * D + column[None, :]
    mask = moves[:, None] & inside
    value = tl.load(table + at, mask=mask, other=0.0)
    if ELEMENT:
        states = tl.load(sums + at, mask=mask, other=0.0) + total * total
        tl.store(sums + at, states, mask=mask)
        value -= rate * total / (tl.sqrt(states) + EPSILON)
    else:
        state = tl.load(sums + row, mask=moves, other=0.0) + tl.sum(total * total, axis=1) / D
        tl.store(sums + row, state, mask=moves)
        value -= rate * total / (tl.sqrt(state) + EPSILON)[:, None]
    tl.store(table + at, value, mask=mask)


def _tile(dimension: int) -> dict[str, int]:
    """The size of a program: many small ones, so that many loads run at a time. Chosen on an H100."""
    width = triton.next_power_of_2(dimension)
    rows = max(1, 512 // width)
    return {"DB": width, "BR": rows, "num_warps": min(4, max(1, rows // 2))}


def update_rows(table_ND: Tensor, sums: Tensor, touched: Runs, gradient_TD: Tensor, lr: Tensor) -> None:
    """See reference.update_rows: the same sums in the same order every time."""
    dimension = gradient_TD.shape[1]
    key_T, order_T = touched
    tile = _tile(dimension)
    is_ordered = False
    while True:
        num, run = len(key_T), RUN_LEFT if is_ordered else RUN
        blocks = triton.cdiv(num, run)
        key_left = key_T.new_empty(2 * blocks)
        left = table_ND.new_empty(2 * blocks, dimension)
        _sum_runs[triton.cdiv(blocks, tile["BR"]),](
            table_ND, sums, key_T, order_T, gradient_TD, key_left, left, num, lr, run, is_ordered,
            sums.dim() == 2, dimension, **tile,
        )  # fmt: skip
        if blocks == 1:
            return
        key_T, gradient_TD, is_ordered = key_left, left, True


@triton.jit
def _scatter(
    table, sums, rows, gradient, T, lr, ELEMENT: tl.constexpr, D: tl.constexpr, DB: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    rate = tl.load(lr).to(tl.float32)
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < T
    column = tl.arange(0, DB)
    mask = there[:, None] & (column < D)[None, :]
    row = tl.load(rows + place, mask=there, other=0).to(tl.int64)
    own = tl.load(gradient + place[:, None] * D + column[None, :], mask=mask, other=0.0)
    at = row[:, None] * D + column[None, :]
    # The sum before this gradient, plus the gradient's own square: others may have added to the sum since.
    # A masked atomic returns nothing.
    if ELEMENT:
        before = tl.atomic_add(sums + at, own * own, mask=mask, sem="relaxed")
        step = -rate * own / (tl.sqrt(tl.where(mask, before, 1.0) + own * own) + EPSILON)
    else:
        square = tl.sum(own * own, axis=1) / D
        before = tl.atomic_add(sums + row, square, mask=there, sem="relaxed")
        step = -rate * own / (tl.sqrt(tl.where(there, before, 1.0) + square) + EPSILON)[:, None]
    tl.atomic_add(table + at, step, mask=mask, sem="relaxed")


def update_rows_fast(table_ND: Tensor, sums: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor) -> None:
    """See reference.update_rows_fast: no sort; the order, and so the rounding, differs every time."""
    num_rows, dimension = gradient_TD.shape
    tile = _tile(dimension)
    _scatter[triton.cdiv(num_rows, tile["BR"]),](
        table_ND, sums, rows_T, gradient_TD, num_rows, lr, sums.dim() == 2, dimension, **tile
    )
