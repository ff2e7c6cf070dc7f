"""All randomness of training, from the one seed of the configuration.

Every use has a generator of its own, derived from the seed and from what it is for. Nothing is carried
from one bucket to the next, so a resumed run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derived(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, such as ("bucket", epoch, path, chunk, lhs, rhs)."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator for one purpose; on the CPU, so that every device sees the same numbers."""
    import torch  # a client that only coordinates does without it

    return torch.Generator().manual_seed(derived(seed, *purpose))
