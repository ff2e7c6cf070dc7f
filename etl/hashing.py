"""The hash that places raw ids: MurmurHash64A of their UTF-8 bytes, for whole columns at once.

Partitions and indices follow from it, so it must never change: it is fixed here by name, the seed is in
the entity index's manifest, and it is not Python's, pandas' or a data frame library's, which promise no
stability. It need not be strong: where two strings share a hash, the strings themselves decide.

Source: Austin Appleby, MurmurHash2, 64-bit version for 64-bit processors (public domain).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASH_NAME = "murmurhash64a"
_M = np.uint64(0xC6A4A7935BD1E995)
_R = np.uint64(47)
_WORD_BYTES = 8
_BLOCK_ROWS = 1 << 13

Hashes = npt.NDArray[np.uint64]


def hash_strings(strings: pa.Array, seed: int) -> Hashes:
    """MurmurHash64A of each string; the same alone as in any batch.

    Args:
        strings: [N] string or large_string, no nulls.
        seed: 0 <= seed < 2**64.
    """
    starts, lengths, text = _buffers(strings)
    # An unaligned view: the word at byte i is the eight bytes from i on, little-endian.
    words = np.ndarray((len(text) - _WORD_BYTES + 1,), "<u8", buffer=text, strides=(1,))
    hashes = np.empty(len(strings), np.uint64)
    for first in range(0, len(strings), _BLOCK_ROWS):  # blocks whose temporaries stay in the cache
        block = slice(first, first + _BLOCK_ROWS)
        hashes[block] = _hash_block(words, starts[block], lengths[block], np.uint64(seed))
    return hashes


def _hash_block(
    words: Hashes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seed: np.uint64
) -> Hashes:
    hashes = seed ^ (lengths.astype(np.uint64) * _M)
    num_common = int(lengths.min()) // _WORD_BYTES  # words that every string has whole
    for number in range(num_common):
        hashes ^= _mixed(words[starts + number * _WORD_BYTES])
        hashes *= _M
    done = num_common * _WORD_BYTES
    rows = np.flatnonzero(lengths > done)
    while rows.size:
        word, left = words[starts[rows] + done], lengths[rows] - done
        # Bytes past the string's end belong to its neighbour: they must not count.
        past_bits = (8 * np.maximum(_WORD_BYTES - left, 0)).astype(np.uint64)
        tail = (word << past_bits) >> past_bits
        hashes[rows] = (hashes[rows] ^ np.where(left < _WORD_BYTES, tail, _mixed(word))) * _M
        rows = rows[left > _WORD_BYTES]
        done += _WORD_BYTES
    hashes ^= hashes >> _R
    hashes *= _M
    return hashes ^ (hashes >> _R)


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


def _mixed(word: Hashes) -> Hashes:
    mixed: Hashes = word * _M
    mixed ^= mixed >> _R
    mixed *= _M
    return mixed


def _buffers(strings: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Starts [N] and lengths [N] of the strings, and their bytes, padded by a word."""
    offset_type = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    _, offset_buffer, text_buffer = strings.buffers()
    if not len(strings) or text_buffer is None:
        zeros = np.zeros(len(strings), np.int64)
        return zeros, zeros.copy(), np.zeros(_WORD_BYTES, np.uint8)
    first = strings.offset
    offsets = np.frombuffer(offset_buffer, offset_type)[first : first + len(strings) + 1].astype(np.int64)
    text = np.zeros(offsets[-1] - offsets[0] + _WORD_BYTES, np.uint8)
    text[:-_WORD_BYTES] = np.frombuffer(text_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return offsets[:-1] - offsets[0], np.diff(offsets), text
