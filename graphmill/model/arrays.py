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


def split(vectors: Array, num_parts: int) -> tuple[Array, ...]:
    """Split the coordinates into equal parts, [..., D / num_parts] each."""
    if num_parts == 1:
        return (vectors,)
    if isinstance(vectors, np.ndarray):
        return tuple(np.split(vectors, num_parts, -1))
    return tuple(vectors.chunk(num_parts, -1))
