"""Seeds of all random numbers of training, from the seed of the configuration.

Each purpose has its own generator, from the seed and the purpose. No state goes from one bucket to the next:
a resumed run draws the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from graphmill.formats.murmur import draw_shares, hash_edges, hash_numbers

if TYPE_CHECKING:
    import torch

_HASHED_EDGES = 1 << 18  # at a time: their hashes stay in the cache


def derived(seed: int, *purpose: str | int) -> int:
    """Derive a 63-bit seed for one purpose, such as ("bucket", epoch, path, chunk, lhs, rhs)."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Make a generator for one purpose, on the CPU, so that every device sees the same numbers."""
    import torch  # a client that only coordinates does without it

    return torch.Generator().manual_seed(derived(seed, *purpose))


def held_out(
    columns: tuple[npt.NDArray[np.integer], ...], fraction: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Draw a fraction of edges [E] by lhs, rel, rhs and seed alone, so that copies are held out together."""
    is_held_E = np.zeros(len(columns[0]), bool)
    for start in range(0, len(is_held_E) if fraction else 0, _HASHED_EDGES):
        part = slice(start, start + _HASHED_EDGES)
        hash_N = hash_edges(*(hash_numbers(column[part], seed) for column in columns))
        is_held_E[part] = draw_shares(hash_N, [fraction]) == 0
    return is_held_E
