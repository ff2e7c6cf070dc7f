"""The kernels, in Triton: each computes what the function of its name in train/gpu/reference.py defines."""

from train.gpu.kernels.drawing import sample
from train.gpu.kernels.ranks import count_above, pair_scores
from train.gpu.kernels.rows import backward, query, stage
from train.gpu.kernels.scores import attend, set_exact, shared_bytes, spread
from train.gpu.kernels.updates import update_parameters, update_rows, update_rows_fast

__all__ = [
    "attend",
    "backward",
    "count_above",
    "pair_scores",
    "query",
    "sample",
    "set_exact",
    "shared_bytes",
    "spread",
    "stage",
    "update_parameters",
    "update_rows",
    "update_rows_fast",
]
