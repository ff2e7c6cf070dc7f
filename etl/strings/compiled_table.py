"""The table of strings that is compiled, see native/strings.cpp."""

import ctypes
import secrets
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from etl.strings import hashing
from etl.strings.native import text_arguments
from etl.strings.table import Distinct, Int32
from graphmill.machine.native import address

_SECRET_BYTES = 32


class CompiledTable:
    """A `StringTable`."""

    def __init__(self, library: ctypes.CDLL, seed: int) -> None:
        self._library = library
        secret = np.frombuffer(secrets.token_bytes(_SECRET_BYTES), np.uint64)
        self._table = library.graphmill_strings(seed, hashing.MASK, address(secret))
        _check(self._table)
        weakref.finalize(self, library.graphmill_strings_free, self._table)

    def number(self, strings: pa.Array, kind_N: Int32) -> Int32:
        """Number of each of N strings."""
        kind_N = np.ascontiguousarray(kind_N, np.int32)
        code_N = np.empty(len(strings), np.int32)
        arguments = (*text_arguments(strings), address(kind_N), address(code_N))
        _check(self._library.graphmill_strings_number(self._table, *arguments))
        return code_N

    def in_order(self, num_kinds: int) -> tuple[list[Distinct], Int32]:
        """The distinct strings kind by kind, in their order; and the place of each number in all of that."""
        counts, num_bytes = np.zeros(num_kinds, np.int64), np.zeros(num_kinds, np.int64)
        self._library.graphmill_strings_count(self._table, address(counts), address(num_bytes))
        position_of = np.empty(counts.sum(), np.int32)
        found: list[Distinct] = []
        for kind, count in enumerate(counts.tolist()):
            hashes, offsets = np.empty(count, np.uint64), np.empty(count + 1, np.int64)
            text = np.empty(num_bytes[kind], np.uint8)
            arrays: list[Any] = [hashes, offsets, text, position_of]
            first = sum(map(len, found))
            order = self._library.graphmill_strings_order
            _check(order(self._table, kind, first, *map(address, arrays)))
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
            found.append(Distinct(pa.Array.from_buffers(pa.large_string(), count, buffers), hashes))
        return found, position_of


def _check(done: object) -> None:
    if not done:
        raise MemoryError("no memory for the distinct ids of a chunk of rows; lower etl.chunk_rows")
