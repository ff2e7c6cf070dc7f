"""Lookup of strings by number, in tables larger than a processor's caches."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.strings import native
from graphmill.machine.native import address

Numbers = npt.NDArray[np.int64]

_SLACK_BYTES = 32  # copies of short strings include the bytes behind them
_TAKE_ROWS = 1 << 15  # rows that pyarrow gathers at once: they fit in the processor's cache
MAX_BYTES = (1 << 31) - 1 - _SLACK_BYTES  # of an Arrow string array


class Texts:
    """Strings in one buffer (`chars` uint8, `offsets` int64), and the row of each number.

    `place` [N], uint32 or uint64, has 1 + the row of each number.
    """

    def __init__(self, place: npt.NDArray[Any], offsets: Numbers, chars: npt.NDArray[np.uint8]) -> None:
        self._place, self._offsets, self._chars = place, offsets, chars

    def take(self, numbers: Numbers) -> pa.ChunkedArray:
        """Look up the strings of `numbers` [n]; every number must have a string."""
        numbers, library = np.ascontiguousarray(numbers, np.int64), native.library()
        found = self._plain(numbers) if library is None else self._compiled(library, numbers)
        return pa.chunked_array(found, pa.string())

    def _compiled(self, library: ctypes.CDLL, numbers: Numbers) -> Iterator[pa.Array]:
        num = len(numbers)
        starts, ends = np.empty(num, np.int64), np.empty(num, np.int64)
        num_bytes = library.graphmill_locate(
            address(self._place),
            self._place.itemsize == 8,
            address(numbers),
            num,
            address(self._offsets),
            address(starts),
            address(ends),
        )
        if num_bytes > MAX_BYTES and num > 1:
            yield from self._compiled(library, numbers[: num // 2])
            yield from self._compiled(library, numbers[num // 2 :])
            return
        copies = pa.allocate_buffer(num_bytes + _SLACK_BYTES)
        offsets = pa.allocate_buffer(4 * (num + 1))
        library.graphmill_copy(
            address(self._chars),
            len(self._chars),
            address(starts),
            address(ends),
            num,
            copies.address,
            offsets.address,
        )
        yield pa.StringArray.from_buffers(num, offsets, copies)

    def _plain(self, numbers: Numbers) -> Iterator[pa.Array]:
        strings = pa.LargeStringArray.from_buffers(
            max(len(self._offsets) - 1, 0), pa.py_buffer(self._offsets), pa.py_buffer(self._chars)
        )
        for start in range(0, len(numbers), _TAKE_ROWS):
            rows = np.take(self._place, numbers[start : start + _TAKE_ROWS]) - 1
            yield strings.take(pa.array(rows)).cast(pa.string())
