"""The hash that places raw ids: MurmurHash64A of their UTF-8 bytes, for whole columns at once.

Partitions and indices follow from it, so it must never change: it is fixed here by name, the seed is in
the entity index's manifest, and it is not Python's, pandas' or a data frame library's, which promise no
stability. It need not be strong: where two strings share a hash, the strings themselves decide.

Source: Austin Appleby, MurmurHash2, 64-bit version for 64-bit processors (public domain).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.compiled import compiled
from etl.text import WORD_BYTES, Text, text_of

HASH_NAME = "murmurhash64a"
_M = np.uint64(0xC6A4A7935BD1E995)
_R = np.uint64(47)

Hashes = npt.NDArray[np.uint64]


def hash_strings(strings: pa.Array, seed: int) -> Hashes:
    """MurmurHash64A of each string; the same alone as in any batch.

    Args:
        strings: [N] string or large_string, no nulls.
        seed: 0 <= seed < 2**64.
    """
    return hash_text(text_of(strings), seed)


def hash_text(text: Text, seed: int) -> Hashes:
    """MurmurHash64A of each of N strings."""
    hashes = np.empty(len(text.starts), np.uint64)
    _hash(text.words, text.starts, text.lengths, np.uint64(seed), hashes)
    return hashes


@compiled
def _hash(words, starts, lengths, seed, hashes):  # type: ignore[no-untyped-def]
    for row in range(len(starts)):
        at, left = starts[row], lengths[row]
        value = seed ^ (np.uint64(left) * _M)
        while left >= WORD_BYTES:
            word = words[at] * _M
            word ^= word >> _R
            value = (value ^ (word * _M)) * _M
            at += WORD_BYTES
            left -= WORD_BYTES
        if left > 0:
            past_bits = np.uint64(64 - 8 * left)  # bytes past the string's end are its neighbour's
            value = (value ^ ((words[at] << past_bits) >> past_bits)) * _M
        value ^= value >> _R
        value *= _M
        hashes[row] = value ^ (value >> _R)


def hash_string(text: str, seed: int) -> int:
    """MurmurHash64A of one string."""
    return int(hash_strings(pa.array([text], pa.string()), seed)[0])


def mix(hashes: Hashes) -> Hashes:
    """Scramble 64-bit values: every bit of the result depends on every bit put in (murmur3's fmix64)."""
    mixed: Hashes = hashes ^ (hashes >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def scale(hashes: Hashes, num_slots: int) -> Hashes:
    """Slot of each hash, 0 <= slot < num_slots < 2**32: equal ranges of the hash's upper half."""
    slots: Hashes = ((hashes >> np.uint64(32)) * np.uint64(num_slots)) >> np.uint64(32)
    return slots
