"""Seeds of all random numbers of training, from the seed of the configuration.

Each purpose has its own generator, from the seed and the purpose. No state goes from one bucket to the next:
a resumed run draws the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derived(seed: int, *purpose: str | int) -> int:
    """Derive a 63-bit seed for one purpose, such as ("bucket", epoch, path, chunk, lhs, rhs)."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Make a generator for one purpose, on the CPU, so that every device sees the same numbers."""
    import torch  # a client that only coordinates does without it

    return torch.Generator().manual_seed(derived(seed, *purpose))
