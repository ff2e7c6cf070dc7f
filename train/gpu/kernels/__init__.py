"""The kernels, in Triton: each computes what the function of its name in train/gpu/reference.py defines."""

from train.gpu.kernels.rows import backward, query, sample, stage
from train.gpu.kernels.scores import candidate_gradients, query_gradients, shared_bytes
from train.gpu.kernels.updates import update_rows, update_rows_fast
from train.gpu.reference import runs
