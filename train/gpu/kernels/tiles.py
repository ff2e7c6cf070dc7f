"""Tiles of the score kernels: the sizes of a program, by kernel, operands and dimension.

Tiles: BP queries, BK candidates, DB columns, the power of two that holds D. wgmma wants 64 rows; a block has
64 K registers, and 227 KB of shared memory on Hopper, less before.
"""

from typing import Literal, NamedTuple

import torch
import triton
from triton.runtime import driver

HOPPER = 90  # compute capability 9.0
Kernel = Literal["query_gradients", "candidate_gradients"]
Operands = Literal["bfloat16", "tf32", "float32"]


class Tile(NamedTuple):
    """Sizes of a program's tile, its warps, and how many tiles are loaded ahead."""

    BP: int
    BK: int
    num_warps: int
    num_stages: int


ByWidth = dict[int, tuple[Tile, ...]]
# No matrix unit multiplies float32.
_FLOAT32: ByWidth = dict.fromkeys((128, 256), (Tile(16, 16, 8, 1),))
_FLOAT32 |= dict.fromkeys((512, 1024), (Tile(16, 16, 16, 1),))
_TF32: ByWidth = {
    128: (Tile(64, 64, 4, 2),),
    256: (Tile(64, 32, 8, 2),),
    512: (Tile(32, 32, 8, 1),),
    1024: (Tile(16, 16, 8, 1),),
}
# By the width that holds the dimension; the second tile is for GPUs before and after Hopper.
TILES: dict[Kernel, dict[Operands, ByWidth]] = {
    "query_gradients": {
        "bfloat16": {
            128: (Tile(64, 64, 4, 3),),
            256: (Tile(64, 64, 4, 2), Tile(64, 32, 8, 2)),
            512: (Tile(64, 64, 8, 2), Tile(32, 32, 8, 2)),
            1024: (Tile(16, 32, 8, 1),),
        },
        "tf32": _TF32,
        "float32": _FLOAT32,
    },
    "candidate_gradients": {
        "bfloat16": {
            128: (Tile(64, 64, 4, 3),),
            256: (Tile(64, 64, 4, 2), Tile(64, 32, 8, 2)),
            512: (Tile(128, 64, 8, 1), Tile(64, 32, 8, 2)),
            1024: (Tile(32, 16, 8, 1),),
        },
        "tf32": _TF32,
        "float32": _FLOAT32,
    },
}


def operands_of(dtype: torch.dtype, *, exact: bool) -> Operands:
    """Name the way in which operands of a type multiply."""
    return "bfloat16" if dtype.itemsize == 2 else "float32" if exact else "tf32"


def sizes_of(kernel: Kernel, dimension: int, dtype: torch.dtype, *, exact: bool) -> dict[str, int]:
    """The sizes that a kernel is launched with on this GPU, for operands [..., D]."""
    width = width_of(dimension)
    tiles = TILES[kernel][operands_of(dtype, exact=exact)][max(width, 128)]
    return {"DB": width, **tiles[0 if _architecture() == HOPPER else -1]._asdict()}


def shared_bytes(dimension: int, dtype: torch.dtype, *, exact: bool) -> int:
    """The most shared memory that a block of either kernel takes on this GPU."""
    needed: list[int] = []
    for kernel in TILES:
        sizes = sizes_of(kernel, dimension, dtype, exact=exact)
        own, others = (
            (sizes["BP"], sizes["BK"]) if kernel == "query_gradients" else (sizes["BK"], sizes["BP"])
        )
        # Only wgmma on bfloat16 reads a tile and its transpose from one copy.
        at_once = 1 if dtype.itemsize == 2 and min(own, others) >= 64 else 2
        rows = own + max(sizes["num_stages"], at_once) * others
        score = dtype.itemsize * (3 if _architecture() >= 100 else 1)
        needed.append(rows * sizes["DB"] * dtype.itemsize + score * own * others + 16 * (own + others))
    return max(needed)


def width_of(dimension: int) -> int:
    """The columns of a tile."""
    return 1 << max(dimension - 1, 15).bit_length()


def _architecture() -> int:
    if triton.knobs.runtime.interpret:
        return HOPPER
    architecture: int = driver.active.get_current_target().arch
    return architecture
