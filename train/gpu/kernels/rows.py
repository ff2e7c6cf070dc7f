"""Kernels on rows: gather rows, apply their relation, carry gradients back through the relation.

A complex embedding has two parts, real and imaginary, of H = D / 2 columns each; any other has one. A tile
is BR rows of HB columns per part, HB the power of two that holds H.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from train.gpu.reference import Operator, Source

_OPERATORS: dict[str, int] = {"none": 0, "diagonal": 1, "translation": 2, "complex_diagonal": 3}


@triton.jit
def _stage(table, rows, out, num_rows, D: tl.constexpr, BR: tl.constexpr, DB: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, DB)
    there = place < num_rows
    both = there[:, None] & (column < D)[None, :]
    row = tl.load(rows + place, mask=there, other=0).to(tl.int64)
    value = tl.load(table + row[:, None] * D + column[None, :], mask=both, other=0.0)
    tl.store(out + place[:, None] * D + column[None, :], value.to(out.dtype.element_ty), mask=both)


def stage(table_ND: Tensor, rows_CK: Tensor, dtype: torch.dtype) -> Tensor:
    """See reference.stage."""
    dimension, rows = table_ND.shape[1], rows_CK.numel()
    out = torch.empty(*rows_CK.shape, dimension, dtype=dtype, device=table_ND.device)
    width = triton.next_power_of_2(dimension)
    height = max(1, 4096 // width)
    _stage[triton.cdiv(rows, height),](table_ND, rows_CK, out, rows, dimension, height, width)
    return out


@triton.jit
def _parts(pointer, row, H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, there):
    """Both parts of some rows in float32; rows of one part have it twice."""
    column = tl.arange(0, HB)
    mask = there[:, None] & (column < H)[None, :]
    place = pointer + row[:, None] * (H * PARTS) + column[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = first
    if PARTS == 2:
        second = tl.load(place + H, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _put_parts(pointer, row, first, second, H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, there):
    column = tl.arange(0, HB)
    mask = there[:, None] & (column < H)[None, :]
    place = pointer + row[:, None] * (H * PARTS) + column[None, :]
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
    table, rows, row_stride, parameters, rel, out, num_queries, P,
    OPERATOR: tl.constexpr, ADJOINT: tl.constexpr, RELATED: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < num_queries
    row = tl.load(rows + place // P * row_stride + place % P, mask=there, other=0).to(tl.int64)
    x, y = _parts(table, row, H, HB, PARTS, there)
    if RELATED:
        own = tl.load(rel + place, mask=there, other=0).to(tl.int64)
        w, v = _parts(parameters, own, H, HB, PARTS, there)
        x, y = _applied(x, y, w, v, OPERATOR, ADJOINT)
    _put_parts(out, place, x, y, H, HB, PARTS, there)


def query(source: Source, dtype: torch.dtype) -> Tensor:
    """See reference.query."""
    table_ND, rows_CP, parameters_RD = source.table_ND, source.rows_CP, source.parameters_RD
    chunks, positives = rows_CP.shape
    out = torch.empty(chunks, positives, table_ND.shape[1], dtype=dtype, device=table_ND.device)
    shape = _shape(source.operator, table_ND.shape[1])
    _query[triton.cdiv(rows_CP.numel(), shape["BR"]),](
        table_ND, rows_CP, rows_CP.stride(0), table_ND if parameters_RD is None else parameters_RD,
        source.rel_CP, out, rows_CP.numel(), positives, _OPERATORS[source.operator], source.adjoint,
        parameters_RD is not None, **shape,
    )  # fmt: skip
    return out


def _shape(operator: Operator, dimension: int) -> dict[str, int]:
    parts = 2 if operator == "complex_diagonal" else 1
    half = dimension // parts
    width = triton.next_power_of_2(half)
    return {"H": half, "HB": width, "PARTS": parts, "BR": max(1, 2048 // (width * parts))}


@triton.jit
def _n3(x, y, regularization, OPERATOR: tl.constexpr):
    """Cost of each row and its gradient."""
    modulus = tl.sqrt(x * x + y * y) if OPERATOR == 3 else tl.abs(x)
    slope = 3.0 * regularization * modulus
    return tl.sum(modulus * modulus * modulus, axis=1) * regularization, slope * x, slope * y


@triton.jit
def _backward(
    table, rows, row_stride, parameters, rel, gradient, to_row, to_own, cost, num_queries, P,
    row_coefficient, own_coefficient,
    OPERATOR: tl.constexpr, ADJOINT: tl.constexpr, RELATED: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, PARTS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    there = place < num_queries
    row = tl.load(rows + place // P * row_stride + place % P, mask=there, other=0).to(tl.int64)
    x, y = _parts(table, row, H, HB, PARTS, there)
    g, h = _parts(gradient, place, H, HB, PARTS, there)
    paid, slope_x, slope_y = _n3(x, y, row_coefficient, OPERATOR)
    if RELATED:
        own = tl.load(rel + place, mask=there, other=0).to(tl.int64)
        w, v = _parts(parameters, own, H, HB, PARTS, there)
        own_paid, slope_w, slope_v = _n3(w, v, own_coefficient, OPERATOR)
        paid += own_paid
        a, b = g, h
        if OPERATOR == 1:
            a = g * x
        if OPERATOR == 3:
            if ADJOINT:  # conj(g) x
                a = x * g + y * h
                b = y * g - x * h
            else:  # conj(x) g
                a = g * x + h * y
                b = h * x - g * y
        _put_parts(to_own, place, a + slope_w, b + slope_v, H, HB, PARTS, there)
        if OPERATOR != 2:
            g, h = _applied(g, h, w, v, OPERATOR, not ADJOINT)
    _put_parts(to_row, place, g + slope_x, h + slope_y, H, HB, PARTS, there)
    tl.store(cost + place, paid, mask=there)


def backward(
    source: Source, gradient_CPD: Tensor, regularization: tuple[float, float], out_CPD: Tensor
) -> tuple[Tensor | None, Tensor]:
    """See reference.backward."""
    table_ND, rows_CP, parameters_RD = source.table_ND, source.rows_CP, source.parameters_RD
    related_CPD = None if parameters_RD is None else torch.empty_like(gradient_CPD)
    cost_CP = torch.empty(rows_CP.shape, device=gradient_CPD.device)
    shape = _shape(source.operator, table_ND.shape[1])
    _backward[triton.cdiv(rows_CP.numel(), shape["BR"]),](
        table_ND, rows_CP, rows_CP.stride(0), table_ND if parameters_RD is None else parameters_RD,
        source.rel_CP, gradient_CPD, out_CPD, out_CPD if related_CPD is None else related_CPD, cost_CP,
        rows_CP.numel(), rows_CP.shape[1], *regularization, _OPERATORS[source.operator], source.adjoint,
        related_CPD is not None, **shape,
    )  # fmt: skip
    return related_CPD, cost_CP.sum(dtype=torch.float64)
