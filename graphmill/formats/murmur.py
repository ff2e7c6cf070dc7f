"""MurmurHash64A of raw ids, which places them in partitions, for whole columns at once in numpy.

Partitions and indices follow from the hash, so it must never change. Its name is fixed here, and its seed is
in the entity index's manifest. Hashes of Python, pandas or data frame libraries promise no stability. The
stage etl has the same loop in C++.

Source: Austin Appleby, MurmurHash2, 64-bit version for 64-bit processors (public domain).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASH_NAME = "murmurhash64a"

_WORD_BYTES = 8
_M = np.uint64(0xC6A4A7935BD1E995)
_R = np.uint64(47)

Hashes = npt.NDArray[np.uint64]


def hash_strings(strings: pa.Array, seed: int) -> Hashes:
    """Return the MurmurHash64A of each string.

    Args:
        strings: [N] string or large_string, no nulls.
        seed: 0 <= seed < 2**64.
    """
    if not len(strings):
        return np.zeros(0, np.uint64)
    offset_type = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    _, offset_buffer, text_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)[strings.offset :][: len(strings) + 1].astype(np.int64)
    # The word at byte i is the eight bytes from i on, little-endian. Zeros follow the last string.
    padded = np.zeros(offsets[-1] - offsets[0] + 2 * _WORD_BYTES, np.uint8)
    if offsets[-1] > offsets[0]:
        padded[: -2 * _WORD_BYTES] = np.frombuffer(text_buffer, np.uint8)[offsets[0] : offsets[-1]]
    words = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", buffer=padded, strides=(1,))
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    value = np.uint64(seed) ^ (lengths.astype(np.uint64) * _M)
    for at in range(0, int(lengths.max()) - _WORD_BYTES + 1, _WORD_BYTES):
        rows = np.flatnonzero(lengths >= at + _WORD_BYTES)
        word = words[starts[rows] + at] * _M
        word ^= word >> _R
        value[rows] = (value[rows] ^ (word * _M)) * _M
    rows = np.flatnonzero(lengths % _WORD_BYTES)
    left = lengths[rows] % _WORD_BYTES
    past_bits = (64 - 8 * left).astype(np.uint64)  # bytes past the string's end are its neighbour's
    rest = (words[starts[rows] + lengths[rows] - left] << past_bits) >> past_bits
    value[rows] = (value[rows] ^ rest) * _M
    value ^= value >> _R
    value *= _M
    hashes: Hashes = value ^ (value >> _R)
    return hashes


def scale(hashes: Hashes, num_slots: int) -> Hashes:
    """Return the slot of each hash, 0 <= slot < num_slots < 2**32: equal ranges of the hash's upper half."""
    slots: Hashes = ((hashes >> np.uint64(32)) * np.uint64(num_slots)) >> np.uint64(32)
    return slots


def mix(hashes: Hashes) -> Hashes:
    """Scramble 64-bit values: every bit of the result depends on every bit put in (murmur3's fmix64)."""
    mixed: Hashes = hashes ^ (hashes >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def hash_numbers(numbers: npt.NDArray[np.integer], seed: int) -> Hashes:
    """Hash whole numbers, such as rows and numbers of relations, of any shape; 0 <= seed < 2**64."""
    return mix(numbers.astype(np.uint64) ^ np.uint64(seed))


def hash_edges(lhs_N: Hashes, rel_N: Hashes, rhs_N: Hashes) -> Hashes:
    """Hash edges, from the hashes of their ends and relations [N]: copies of an edge have one hash."""
    ends_N = mix(lhs_N * np.uint64(3) ^ rhs_N)  # times 3: an edge and its reverse are different edges
    return mix(ends_N ^ rel_N)


def draw_shares(hash_N: Hashes, fractions: Sequence[float]) -> npt.NDArray[np.int64]:
    """Draw a share for each edge from its hash alone: the number of a fraction, or after these the rest.

    Every split of edges is drawn so: rows that are the same edge are never in two of them.
    """
    limits = np.cumsum(fractions) * 2.0**32
    shares: npt.NDArray[np.int64] = np.searchsorted(
        limits, (hash_N >> np.uint64(32)).astype(np.float64), side="right"
    )
    return shares
