"""Passes of a step on queries in compiled code: the softmax of scores, and Adagrad on touched rows.

Torch needs several passes over the same memory for each, which take longer than the products between them.
A call releases the GIL and uses torch's number of threads; the result does not depend on it.

Shapes: Q queries, N scores of a query, K touched rows with repetitions, D dimension.
"""

import ctypes
from ctypes import c_double, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from graphmill.errors import TrainingError
from graphmill.machine import native
from train.model.optimizer import Rate
from train.step.queries import Passes, SoftmaxOfScores
from train.step.step import Table

SOURCE = native.KERNELS / "query_step.cpp"
# Result and arguments.
library = native.loader(
    SOURCE,
    {
        "bytes_of_real": (c_int, []),
        "softmax": (c_int, [c_void_p, c_int, c_int64, c_int64, c_void_p, c_void_p, c_int]),
        "move_rows": (c_int, [c_void_p, c_void_p, c_int]),
    },
    name="queries",
    instead="torch does these passes",
)


class _Rows(ctypes.Structure):
    _fields_ = (
        ("values", c_void_p),
        ("sums", c_void_p),
        ("dimension", c_int64),
        ("element_wise", c_int64),
        ("lr", c_double),
        ("max_norm", c_double),
    )


class _Touched(ctypes.Structure):
    _fields_ = (("count", c_int64), ("rows", c_void_p), ("order", c_void_p), ("gradients", c_void_p))


class CompiledPasses(Passes):
    """Compiled passes, with the results of torch's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        is_double = library.graphmill_bytes_of_real() == torch.float64.itemsize
        self._real = torch.float64 if is_double else torch.float32
        self._of_scores = {self._real} if is_double else {self._real, torch.bfloat16}

    def softmax(self, score_QN: Tensor) -> SoftmaxOfScores:
        """Compute the softmax in the memory of the scores."""
        if score_QN.dtype not in self._of_scores or not score_QN.is_contiguous():
            return super().softmax(score_QN)
        num, width = score_QN.shape
        best_Q, total_Q = (torch.empty(num, dtype=self._real) for _ in range(2))
        failed = self.library.graphmill_softmax(
            score_QN.data_ptr(),
            score_QN.dtype is torch.bfloat16,
            num,
            width,
            best_Q.data_ptr(),
            total_Q.data_ptr(),
            torch.get_num_threads(),
        )
        _check(failed)
        return SoftmaxOfScores(best_Q, total_Q, score_QN)

    def update_rows(
        self, table: Table, rows_K: Tensor, gradient_KD: Tensor, lr: Rate, max_norm: float | None
    ) -> None:
        """Take the step in one pass over the touched rows."""
        embeddings_ND, sums = table.embeddings_ND, table.sums
        if embeddings_ND.dtype is not self._real:
            super().update_rows(table, rows_K, gradient_KD, lr, max_norm)
            return
        sorted_K, order_K = torch.sort(rows_K, stable=True)
        sorted_K, gradient_KD = sorted_K.long(), gradient_KD.contiguous()
        rows = _Rows(
            embeddings_ND.data_ptr(),
            sums.data_ptr(),
            embeddings_ND.shape[1],
            sums.dim() == 2,
            lr,
            max_norm or 0.0,
        )
        touched = _Touched(len(rows_K), sorted_K.data_ptr(), order_K.data_ptr(), gradient_KD.data_ptr())
        threads = torch.get_num_threads()
        _check(self.library.graphmill_move_rows(ctypes.byref(rows), ctypes.byref(touched), threads))


def _check(failed: int) -> None:
    if failed:
        raise TrainingError("out of memory for the buffers of a training step; lower batch_size")
