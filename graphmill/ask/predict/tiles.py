"""Tiles of vectors: all have the same shape, so that all matrix products round alike."""

from collections.abc import Callable, Iterator

import numpy as np

from graphmill.ask.relation import check_magnitude
from graphmill.checkpoints import Floats


def tiles(
    vectors: Floats, size: int, make: Callable[[Floats], Floats], where: str, step: int | None = None
) -> Iterator[tuple[int, Floats]]:
    """Cut vectors into tiles [size, D], padded with zeros, and make queries or candidates of each.

    Yields the first row of each tile, and the tile. With `step`, a tile has fewer rows than its size.
    """
    step = step or size
    for start in range(0, len(vectors), step):
        tile = np.zeros((size, vectors.shape[1]), np.float32)
        part = vectors[start : start + step]
        tile[: len(part)] = part
        check_magnitude(part, where)
        made = make(tile)
        check_magnitude(made[: len(part)], where)
        yield start, made
