"""Kernels run on the GPU, or without one in Triton's interpreter, which is chosen before they are defined."""

import os
from importlib.util import find_spec
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        from triton.runtime import interpreter

        patch_tensor = interpreter._patch_lang_tensor

        def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
            """A loop's bounds are arrays of one number there, which NumPy takes for no index any more."""
            patch_tensor(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        interpreter._patch_lang_tensor = patch_tensor_and_index
