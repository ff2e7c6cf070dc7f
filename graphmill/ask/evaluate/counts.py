"""Counts of a ranking in compiled code: numbers of a product above and between limits, in one pass.

Torch needs several passes, each of which takes longer than the product. A call releases the GIL. Pairs that a
product in bfloat16 leaves in doubt are multiplied once more, one by one.

Shapes: P queries, N candidates, C edges, T pairs of an edge and a candidate.
"""

import ctypes
from collections.abc import Iterator
from ctypes import c_int, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.machine import native

SOURCE = native.KERNELS / "counts.cpp"
ALIGNED = 16  # numbers of the widest vector
_PRODUCTS = [c_void_p, c_int, c_int64, c_int64, c_void_p]
# Result and arguments.
library = native.loader(
    SOURCE,
    {"count": (None, [*_PRODUCTS, c_void_p, c_void_p]), "list": (c_int64, [*_PRODUCTS, *5 * [c_void_p]])},
    name="ranking",
    instead="torch counts",
)


class _Edges(ctypes.Structure):
    _fields_ = (
        ("num_edges", c_int64),
        ("row", c_void_p),
        ("own_column", c_void_p),
        ("low", c_void_p),
        ("high", c_void_p),
    )


class _Factors(ctypes.Structure):
    _fields_ = (
        ("queries", c_void_p),
        ("candidates", c_void_p),
        ("dimension", c_int64),
        ("low", c_void_p),
        ("high", c_void_p),
    )


class Factors(NamedTuple):
    """Queries [P, D] and candidates [N, D], float32, D a multiple of ALIGNED; limits of products [C]."""

    queries: Tensor
    candidates: Tensor
    low: Tensor
    high: Tensor


class Counter:
    """Edges, compared with rows of a product [P, N] of float32 or bfloat16 on the CPU.

    A number counts for an edge if it lies in the edge's row, and not in its own column (-1: none).
    """

    def __init__(
        self, product_PN: Tensor, row_C: Tensor, own_column_C: Tensor, low_C: Tensor, high_C: Tensor
    ) -> None:
        compiled = library()
        assert compiled is not None  # the caller has looked
        self._library = compiled
        low_C, high_C = (limit.flatten().float().contiguous() for limit in (low_C, high_C))
        rows = row_C.contiguous(), own_column_C.contiguous()
        self._held = product_PN, *rows, low_C, high_C  # the addresses below are theirs
        self._edges = _Edges(len(row_C), *(tensor.data_ptr() for tensor in self._held[1:]))
        is_half = product_PN.dtype is torch.bfloat16
        width, stride = product_PN.shape[1], product_PN.stride(0)
        self._arguments = product_PN.data_ptr(), is_half, width, stride, ctypes.byref(self._edges)

    def count(self) -> tuple[Tensor, Tensor]:
        """Numbers above an edge's upper limit, and numbers from its lower to its upper limit: [C] each."""
        above_C, between_C = (torch.empty_like(self._held[1]) for _ in range(2))
        self._library.graphmill_count(*self._arguments, above_C.data_ptr(), between_C.data_ptr())
        return above_C, between_C

    def pairs(
        self, between_C: Tensor, above_C: Tensor, factors: Factors | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the pairs that `count` found between the limits, in parts: edges and columns, [T] each.

        With `factors`, their product decides about pairs where it can, and adds those above to `above_C`.
        """
        edge_T, column_T = (between_C.new_empty(int(between_C.sum())) for _ in range(2))
        structure = _Factors()
        if factors is not None:
            held = [factor.contiguous() for factor in factors]
            query, candidate, low, high = (tensor.data_ptr() for tensor in held)
            structure = _Factors(query, candidate, held[0].shape[1], low, high)
        num_pairs = self._library.graphmill_list(
            *self._arguments,
            between_C.data_ptr(),
            ctypes.byref(structure),
            above_C.data_ptr(),
            edge_T.data_ptr(),
            column_T.data_ptr(),
        )
        yield edge_T[:num_pairs], column_T[:num_pairs]
