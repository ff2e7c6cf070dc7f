"""The hash that places raw ids: MurmurHash64A of their UTF-8 bytes, for whole columns at once.

The hash need not be strong: strings that share a hash are ordered by the strings themselves. Without a
compiler, `graphmill.formats.murmur` does the work.
"""

import numpy as np
import pyarrow as pa

from etl.strings import native
from etl.strings.native import text_arguments
from graphmill.formats import murmur
from graphmill.formats.murmur import HASH_NAME, Hashes, mix, scale
from graphmill.machine.native import address

__all__ = ["HASH_NAME", "MASK", "Hashes", "hash_strings", "mix", "scale"]

MASK = (1 << 64) - 1
"""Bits of the hash that are kept. Tests keep fewer, to get equal hashes."""


def hash_strings(strings: pa.Array, seed: int) -> Hashes:
    """Return the MurmurHash64A of each string.

    Args:
        strings: [N] string or large_string, no nulls.
        seed: 0 <= seed < 2**64.
    """
    library = native.library()
    if not len(strings):
        return np.zeros(0, np.uint64)
    if library is None:
        return murmur.hash_strings(strings, seed) & np.uint64(MASK)
    hashes = np.empty(len(strings), np.uint64)
    library.graphmill_hash(*text_arguments(strings), seed, address(hashes))
    return hashes & np.uint64(MASK)
