"""Projection of long vectors to their principal components.

Shapes: n vectors of a batch, L their length, D components.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError

MOST_LENGTH = 8192  # a matrix of L x L numbers of 8 bytes, and its factors, are in memory

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Projection:
    """The mean and the first principal components of vectors.

    Attributes:
        mean_L: The mean.
        components_LD: The components, by descending variance; the largest element of each is positive.
        explained: Share of the variance that the components have, 0 to 1.
        num_fitted: Vectors that it was fitted on.
    """

    mean_L: Floats
    components_LD: Floats
    explained: float
    num_fitted: int

    def of(self, vectors_nL: Floats) -> Floats:
        """The vectors without the mean, in the space of the components, [n, D]."""
        return np.asarray((vectors_nL - self.mean_L) @ self.components_LD, np.float32)


def fitted(batches: Iterable[Floats], length: int, num_components: int) -> Projection:
    """Fit a projection on batches of vectors [n, length]; the sums have float64.

    Rounding to float32 hides the last bits of the sums, which depend on the number of threads.
    """
    if length > MOST_LENGTH:
        raise FormatError(
            f"vectors of length {length}: expected {MOST_LENGTH} at most to project them to {num_components} "
            "components; shorten them first"
        )
    num, total_L, products_LL = 0, np.zeros(length), np.zeros((length, length))
    shift_L: npt.NDArray[np.float64] | None = None
    for vectors_nL in batches:
        if shift_L is None:  # of large means, little would be left of the variance
            shift_L = vectors_nL.mean(axis=0, dtype=np.float64)
        shifted_nL = vectors_nL - shift_L
        num += len(shifted_nL)
        total_L += shifted_nL.sum(axis=0)
        products_LL += shifted_nL.T @ shifted_nL
    if shift_L is None:
        return Projection(np.zeros(length, np.float32), np.zeros((length, num_components), np.float32), 0, 0)
    mean_L = total_L / num
    products_LL -= num * np.outer(mean_L, mean_L)
    variances, vectors = np.linalg.eigh(products_LL)
    components_LD = vectors[:, ::-1][:, :num_components]
    largest = np.abs(components_LD).argmax(axis=0)
    components_LD = components_LD * np.where(components_LD[largest, np.arange(num_components)] < 0, -1, 1)
    variances = np.maximum(variances[::-1], 0)
    explained = float(variances[:num_components].sum() / variances.sum()) if variances.sum() else 1.0
    return Projection((mean_L + shift_L).astype(np.float32), components_LD.astype(np.float32), explained, num)
