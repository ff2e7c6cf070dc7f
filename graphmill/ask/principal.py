"""Principal components of a type's vectors, from moments that partitions and blocks add up to.

Moments are merged around their own means (Chan, Golub and LeVeque, 1983), in float64 and in the order of the
rows, so that the same vectors give the same components, whatever the workers.

Shapes: N rows of a block, D dimension, K components.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphmill.ask.entities import EntityTable
from graphmill.ask.relation import check_magnitude
from graphmill.checkpoints import Floats
from graphmill.errors import BadInputError

Doubles = npt.NDArray[np.float64]

BLOCK_ROWS = 1 << 14
TILE_ROWS = 1 << 10


@dataclass(frozen=True, eq=False)
class Moments:
    """Number of vectors, their mean [D], and the sum of products of their distances from it [D, D]."""

    num: int
    mean_D: Doubles
    products_DD: Doubles

    @classmethod
    def of(cls, vectors_ND: Floats) -> "Moments":
        """Compute the moments of some vectors, one or more."""
        rows_ND = vectors_ND.astype(np.float64)
        mean_D = rows_ND.mean(0)
        rows_ND -= mean_D
        return cls(len(rows_ND), mean_D, rows_ND.T @ rows_ND)

    def merged(self, other: "Moments") -> "Moments":
        """Add the moments of other vectors."""
        num = self.num + other.num
        step_D = other.mean_D - self.mean_D
        products_DD = np.outer(step_D, step_D) * (self.num * other.num / num)
        return Moments(
            num, self.mean_D + step_D * (other.num / num), self.products_DD + other.products_DD + products_DD
        )


def moments_of(blocks: Iterable[Floats]) -> Moments | None:
    """Add up the moments of blocks; None if there is no vector."""
    total: Moments | None = None
    for vectors_ND in blocks:
        if len(vectors_ND):
            moments = Moments.of(vectors_ND)
            total = moments if total is None else total.merged(moments)
    return total


def moments_of_partition(table: EntityTable, partition: int) -> tuple[int, Moments | None]:
    """Compute the moments of a partition; a Dask task. Returns the partition's number too."""
    where = f"{table.trained.checkpoint_path}: {table.entity_type!r}, partition {partition}"

    def blocks() -> Iterable[Floats]:
        for _, vectors_ND in table.blocks(partition, BLOCK_ROWS):
            check_magnitude(vectors_ND, where)
            yield vectors_ND

    return partition, moments_of(blocks())


@dataclass(frozen=True, eq=False)
class Components:
    """The directions in which vectors vary most, the first most of all.

    Attributes:
        mean_D: mean of the vectors.
        axes_DK: directions of length 1; in each the largest coordinate is positive.
        share_K: share of the variance that each direction explains.
    """

    mean_D: Doubles
    axes_DK: Doubles
    share_K: Doubles

    @classmethod
    def of(cls, moments: Moments, num: int) -> "Components":
        """Compute the first `num` components."""
        dimension = len(moments.mean_D)
        if not 1 <= num <= dimension:
            raise BadInputError(
                f"components: expected 1 to {dimension}, as the vectors have length {dimension}, found {num}"
            )
        variance_D, axes_DD = np.linalg.eigh(moments.products_DD / moments.num)
        axes_DK = axes_DD[:, ::-1][:, :num].copy()
        largest_K = np.abs(axes_DK).argmax(0)
        axes_DK *= np.where(axes_DK[largest_K, np.arange(num)] < 0, -1.0, 1.0)
        variance_D = np.maximum(variance_D[::-1], 0)
        return cls(moments.mean_D, axes_DK, variance_D[:num] / max(float(variance_D.sum()), 1e-300))

    def __call__(self, vectors_ND: Floats) -> Floats:
        """Project vectors, [N, K]."""
        return product(vectors_ND.astype(np.float64) - self.mean_D, self.axes_DK)


def product(rows_ND: Doubles, others_DK: Doubles) -> Floats:
    """Multiply in tiles of one shape: a row's result does not depend on the rows beside it."""
    product_NK = np.empty((len(rows_ND), others_DK.shape[1]), np.float32)
    for start in range(0, len(rows_ND), TILE_ROWS):
        part = rows_ND[start : start + TILE_ROWS]
        tile = np.zeros((TILE_ROWS, rows_ND.shape[1]))
        tile[: len(part)] = part
        product_NK[start : start + len(part)] = (tile @ others_DK)[: len(part)]
    return product_NK
