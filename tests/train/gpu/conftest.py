"""Kernels run on the GPU, or in Triton's interpreter."""

import tests.triton_interpreter  # noqa: F401  chosen before kernels are defined
