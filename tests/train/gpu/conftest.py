"""Kernels run on the GPU, or without one in Triton's interpreter, which is chosen before they are defined."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
