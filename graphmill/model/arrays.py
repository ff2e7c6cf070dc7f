"""Arrays of numpy or torch: formulas use the names that both libraries share."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "Tensor", "npt.NDArray[np.float32]")


def library(array: Any) -> Any:
    """Return the library of an array: the module numpy or the module torch."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def halves(vectors: Array) -> tuple[Array, Array]:
    """Split the coordinates into halves: [..., D] -> [..., D / 2] twice."""
    if isinstance(vectors, np.ndarray):
        first, second = np.split(vectors, 2, -1)
    else:
        first, second = vectors.chunk(2, -1)
    return first, second
