"""Kernels that draw edges, gather rows, apply their relation, carry gradients back through the relation.

A complex embedding has two parts, real and imaginary, of H = D / 2 columns each; any other has one. A tile
is BR rows of HB columns per part, HB the power of two that holds H.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphmill.model.operators import operator_of
from train.gpu.reference import OPERATORS, ROUNDS, KernelEdges, KernelSample, KernelSource, Positive

# Arguments that need no compilation of their own: the last chunks of groups have any size.
_SIZES = ["C", "P", "AGAIN", "DRAWN"]


@triton.jit
def _mixed(key, counter):
    """See reference.mix: uint32 in and out."""
    bits = counter * 0x9E3779B1 + key
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    bits = (bits + key) * 0x85EBCA6B
    bits = (bits ^ (bits >> 15)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit
def _network(key, value, bits, ROUNDS: tl.constexpr):
    mask = (1 << bits) - 1
    left = value >> bits
    right = value & mask
    for number in tl.static_range(ROUNDS):
        turned = _mixed(key, (right + (number << 26)).to(tl.uint32)).to(tl.int64)
        left, right = right, left ^ (turned & mask)
    return (left << bits) | right


@triton.jit
def _drawn(key, counter, num, own):
    """See reference.draw: `own` points to start, stop and odds."""
    start = tl.load(own)
    num_own = tl.load(own + 1) - start
    bits = _mixed(key, counter).to(tl.int64)
    other = (bits * (num - num_own)) >> 32
    is_own = _mixed(key ^ 1, counter).to(tl.int64) < tl.load(own + 2)
    other += tl.where(other >= start, num_own, 0)
    return tl.where(is_own, start + ((bits * num_own) >> 32), other).to(tl.int32)


@triton.jit(do_not_specialize=_SIZES)
def _sample(
    lhs, rel, rhs, weight, clock, out_lhs, out_rhs, out_rel, out_weight, C, P, AGAIN, DRAWN,
    ROUNDS: tl.constexpr, WEIGHTED: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    K = P + AGAIN + DRAWN
    key = tl.load(clock).to(tl.uint32)
    position = tl.load(clock + 1)
    first = tl.load(clock + 2)
    size = tl.load(clock + 3)
    bits = tl.load(clock + 4)
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < C * K
    chunk = place // K
    k = place % K
    is_edge = there & (k < P + AGAIN)
    is_positive = there & (k < P)
    number = chunk * P + tl.where(k < P, k, k - P)
    edge = _network(key, tl.where(is_edge, position + number, 0), bits, ROUNDS)
    outside = is_edge & (edge >= size)
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        edge = tl.where(outside, _network(key, edge, bits, ROUNDS), edge)
        outside = is_edge & (edge >= size)
    edge = tl.where(is_edge, edge, 0) + first
    draw = (chunk * DRAWN + (k - P - AGAIN)).to(tl.uint32)
    now = position.to(tl.uint32)
    lhs_drawn = _drawn(_mixed(key ^ 1, now), draw, tl.load(clock + 5), clock + 7)
    rhs_drawn = _drawn(_mixed(key ^ 2, now), draw, tl.load(clock + 6), clock + 10)
    lhs_row = tl.load(lhs + edge, mask=is_edge, other=0)
    rhs_row = tl.load(rhs + edge, mask=is_edge, other=0)
    tl.store(out_lhs + place, tl.where(is_edge, lhs_row, lhs_drawn), mask=there)
    tl.store(out_rhs + place, tl.where(is_edge, rhs_row, rhs_drawn), mask=there)
    tl.store(out_rel + number, tl.load(rel + edge, mask=is_positive, other=0), mask=is_positive)
    own = tl.full([BR], 1.0, tl.float32)
    if WEIGHTED:
        own = tl.load(weight + edge, mask=is_positive, other=0.0)
    tl.store(out_weight + number, own, mask=is_positive)


def sample(edges: KernelEdges, clock_F: Tensor, shape: tuple[int, int, int, int]) -> KernelSample:
    """See reference.sample."""
    chunks, positives, again, drawn = shape
    device = clock_F.device
    candidates = positives + again + drawn
    rows_SCK = torch.empty(2, chunks, candidates, dtype=torch.int32, device=device)
    rel_CP = torch.empty(chunks, positives, dtype=torch.int32, device=device)
    weight_CP = torch.empty(chunks, positives, device=device)
    _sample[triton.cdiv(chunks * candidates, 256),](
        edges.lhs, edges.rel, edges.rhs, edges.rel if edges.weight is None else edges.weight, clock_F,
        *rows_SCK, rel_CP, weight_CP, chunks, positives, again, drawn,
        ROUNDS, edges.weight is not None, 256,
    )  # fmt: skip
    return KernelSample(rows_SCK, rel_CP, weight_CP)


@triton.jit
def _stage(
    table, rows, out, num_rows, FIRST, NUM, D: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
    DB: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < num_rows
    place = place // NUM * (FIRST + NUM) + FIRST + place % NUM
    column = tl.arange(0, DB)
    row = tl.load(rows + place, mask=there, other=0).to(tl.int64)
    inside = there[:, None] & (column < D)[None, :]
    value = tl.load(table + row[:, None] * D + column[None, :], mask=inside, other=0.0)
    inside = there[:, None] & (column < W)[None, :]
    tl.store(out + place[:, None] * W + column[None, :], value.to(out.dtype.element_ty), mask=inside)


def stage(table_ND: Tensor, rows_CK: Tensor, positives: int, dtype: torch.dtype) -> Tensor:
    """See reference.stage."""
    chunks, candidates = rows_CK.shape
    dimension, drawn = table_ND.shape[1], candidates - positives
    out_CKW = _operands(chunks, candidates, dimension, table_ND.device, dtype)
    if drawn:
        width = triton.next_power_of_2(out_CKW.shape[2])
        height = max(1, 4096 // width)
        _stage[triton.cdiv(chunks * drawn, height),](
            table_ND, rows_CK, out_CKW, chunks * drawn, positives, drawn, dimension, out_CKW.shape[2],
            height, width,
        )  # fmt: skip
    return out_CKW[:, :, :dimension]


def _operands(chunks: int, rows: int, dimension: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Allocate operands: rows begin at multiples of 16 bytes, which a thread loads at a time."""
    step = 16 // dtype.itemsize
    return torch.empty(chunks, rows, triton.cdiv(dimension, step) * step, dtype=dtype, device=device)


@triton.jit
def _parts(pointer, row, W: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, there):
    """Both parts of some rows, W numbers apart, in float32; rows of one part have it twice."""
    column = tl.arange(0, HB)
    mask = there[:, None] & (column < H)[None, :]
    place = pointer + row[:, None] * W + column[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = first
    if PARTS == 2:
        second = tl.load(place + H, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _put_parts(
    pointer, row, first, second, W: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr,
    there,
):  # fmt: skip
    column = tl.arange(0, HB)
    mask = there[:, None] & (column < H)[None, :]
    place = pointer + row[:, None] * W + column[None, :]
    tl.store(place, first.to(pointer.dtype.element_ty), mask=mask)
    if PARTS == 2:
        tl.store(place + H, second.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _applied(x, y, w, v, OPERATOR: tl.constexpr, ADJOINT: tl.constexpr):
    """The relation (w, v) applied to (x, y)."""
    first, second = x, y
    if OPERATOR == 1:
        first = x * w
    if OPERATOR == 2:
        first = x + w
    if OPERATOR == 3:
        if ADJOINT:
            first = x * w + y * v
            second = y * w - x * v
        else:
            first = x * w - y * v
            second = x * v + y * w
    return first, second


@triton.jit
def _query(
    table, rows, K, parameters, rel, out, own_out, num_queries, P,
    OPERATOR: tl.constexpr, ADJOINT: tl.constexpr, RELATED: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < num_queries
    candidate = place // P * K + place % P
    row = tl.load(rows + candidate, mask=there, other=0).to(tl.int64)
    x, y = _parts(table, row, H * PARTS, H, HB, PARTS, there)
    _put_operands(own_out, candidate, x, y, W, H, HB, PARTS, BR, there)
    if RELATED:
        own = tl.load(rel + place, mask=there, other=0).to(tl.int64)
        w, v = _parts(parameters, own, H * PARTS, H, HB, PARTS, there)
        x, y = _applied(x, y, w, v, OPERATOR, ADJOINT)
    _put_operands(out, place, x, y, W, H, HB, PARTS, BR, there)


@triton.jit
def _put_operands(
    pointer, row, first, second, W: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr,
    BR: tl.constexpr, there,
):  # fmt: skip
    """Store rows, with zeros up to their width."""
    _put_parts(pointer, row, first, second, W, H, HB, PARTS, there)
    if H * PARTS < W:
        column = H * PARTS + tl.arange(0, 8)
        zeros = tl.zeros([BR, 8], pointer.dtype.element_ty)
        mask = there[:, None] & (column < W)[None, :]
        tl.store(pointer + row[:, None] * W + column[None, :], zeros, mask=mask)


def query(source: KernelSource, own_CKD: Tensor) -> Tensor:
    """See reference.query."""
    table_ND, rows_CP, parameters_RD = source.table_ND, source.rows_CP, source.parameters_RD
    dimension = table_ND.shape[1]
    chunks, positives = rows_CP.shape
    out_CPW = _operands(chunks, positives, dimension, table_ND.device, own_CKD.dtype)
    shape = _shape(source.operator, dimension)
    _query[triton.cdiv(rows_CP.numel(), shape["BR"]),](
        table_ND, rows_CP, own_CKD.shape[1], table_ND if parameters_RD is None else parameters_RD,
        source.rel_CP, out_CPW, own_CKD, rows_CP.numel(), positives, OPERATORS[source.operator],
        source.adjoint, parameters_RD is not None, W=out_CPW.shape[2], **shape,
    )  # fmt: skip
    return out_CPW[:, :, :dimension]


def _shape(operator: str, dimension: int) -> dict[str, int]:
    parts = operator_of(operator).parts
    half = dimension // parts
    width = triton.next_power_of_2(half)
    return {"H": half, "HB": width, "PARTS": parts, "BR": max(1, 2048 // (width * parts))}


@triton.jit
def _n3(x, y, regularization, OPERATOR: tl.constexpr):
    modulus = tl.sqrt(x * x + y * y) if OPERATOR == 3 else tl.abs(x)
    slope = 3.0 * regularization * modulus
    return tl.sum(modulus * modulus * modulus, axis=1) * regularization, slope * x, slope * y


@triton.jit
def _backward(
    table, rows, K, parameters, rel, gradient, query, pull, to_row, to_own, cost, num_queries, P,
    row_coefficient, own_coefficient,
    OPERATOR: tl.constexpr, ADJOINT: tl.constexpr, RELATED: tl.constexpr, ADD: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < num_queries
    candidate = place // P * K + place % P
    row = tl.load(rows + candidate, mask=there, other=0).to(tl.int64)
    x, y = _parts(table, row, H * PARTS, H, HB, PARTS, there)
    g, h = _parts(gradient, place, H * PARTS, H, HB, PARTS, there)
    paid, slope_x, slope_y = _n3(x, y, row_coefficient, OPERATOR)
    if RELATED:
        own = tl.load(rel + place, mask=there, other=0).to(tl.int64)
        w, v = _parts(parameters, own, H * PARTS, H, HB, PARTS, there)
        own_paid, slope_w, slope_v = _n3(w, v, own_coefficient, OPERATOR)
        paid += own_paid
        a, b = g, h
        if OPERATOR != 2:
            if ADJOINT:  # conj(g) x
                a, b = _applied(x, y, g, h, OPERATOR, True)
            else:  # conj(x) g
                a, b = _applied(g, h, x, y, OPERATOR, True)
            g, h = _applied(g, h, w, v, OPERATOR, not ADJOINT)
        _put_parts(to_own, place, a + slope_w, b + slope_v, H * PARTS, H, HB, PARTS, there)
    of_pull = tl.load(pull + place, mask=there, other=0.0)[:, None]
    q, r = _parts(query, place, W, H, HB, PARTS, there)
    g += slope_x + of_pull * q
    h += slope_y + of_pull * r
    if ADD:
        q, r = _parts(to_row, candidate, H * PARTS, H, HB, PARTS, there)
        g += q
        h += r
    _put_parts(to_row, candidate, g, h, H * PARTS, H, HB, PARTS, there)
    tl.store(cost + place, paid, mask=there)


def backward(
    source: KernelSource,
    gradient_CPD: Tensor,
    positive: Positive,
    regularization: tuple[float, float],
    out_CKD: Tensor,
    related_CPD: Tensor,
) -> Tensor:
    """See reference.backward."""
    table_ND, rows_CP, parameters_RD = source.table_ND, source.rows_CP, source.parameters_RD
    cost_CP = torch.empty(rows_CP.shape, device=gradient_CPD.device)
    shape = _shape(source.operator, table_ND.shape[1])
    _backward[triton.cdiv(rows_CP.numel(), shape["BR"]),](
        table_ND, rows_CP, out_CKD.shape[1], table_ND if parameters_RD is None else parameters_RD,
        source.rel_CP, gradient_CPD, positive.query_CPD, positive.pull_CP, out_CKD,
        related_CPD, cost_CP, rows_CP.numel(), rows_CP.shape[1],
        *regularization, OPERATORS[source.operator], source.adjoint,
        parameters_RD is not None, positive.is_negative, W=positive.query_CPD.stride(1), **shape,
    )  # fmt: skip
    return cost_CP
