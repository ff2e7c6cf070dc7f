"""The bytes of a column of strings, as compiled loops read them: a word of eight at a time."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.compiled import compiled

WORD_BYTES = 8
_PADDING_BYTES = 2 * WORD_BYTES  # so that `words` is never of length 1, which numpy lays out as another type


class Text(NamedTuple):
    """N strings."""

    words: npt.NDArray[np.uint64]
    """The word at byte i is the eight bytes from i on, little-endian; zeros follow the last string."""
    starts: npt.NDArray[np.int64]
    """[N] the byte at which each string starts."""
    lengths: npt.NDArray[np.int64]
    """[N] bytes of each string."""


def text_of(strings: pa.Array) -> Text:
    """The text of an array of string or large_string, no nulls."""
    offset_type = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    _, offset_buffer, text_buffer = strings.buffers()
    offsets = np.zeros(len(strings) + 1, np.int64)
    if len(strings) and text_buffer is not None:
        offsets[:] = np.frombuffer(offset_buffer, offset_type)[strings.offset :][: len(strings) + 1]
    padded = np.zeros(offsets[-1] - offsets[0] + _PADDING_BYTES, np.uint8)
    if len(padded) > _PADDING_BYTES:
        padded[:-_PADDING_BYTES] = np.frombuffer(text_buffer, np.uint8)[offsets[0] : offsets[-1]]
    words = np.ndarray((len(padded) - WORD_BYTES + 1,), "<u8", buffer=padded, strides=(1,))
    offsets -= offsets[0]
    return Text(words, offsets[:-1], np.diff(offsets))


@compiled
def same_text(words, one, two, length):  # type: ignore[no-untyped-def]
    """Whether the `length` bytes from byte `one` on are those from byte `two` on."""
    while length >= WORD_BYTES:
        if words[one] != words[two]:
            return False
        one += WORD_BYTES
        two += WORD_BYTES
        length -= WORD_BYTES
    if length == 0:
        return True
    past_bits = np.uint64(64 - 8 * length)  # what follows the strings must not count
    return words[one] << past_bits == words[two] << past_bits
