"""The loops that numpy has no word for: native/strings.cpp, compiled on this machine when first wanted.

Where there is no compiler, what uses it does the same with numpy and pyarrow, more slowly.
"""

import ctypes
from ctypes import c_bool, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from graphmill.machine import native

SOURCE = Path(__file__).with_name("strings.cpp")

# Result, and arguments: pointers, but for what is said.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "strings": (c_void_p, [c_uint64, c_uint64, c_void_p]),
    "strings_free": (None, [c_void_p]),
    "strings_number": (c_bool, [c_void_p, c_void_p, c_bool, c_void_p, c_int64, c_void_p, c_void_p]),
    "strings_count": (None, [c_void_p] * 3),
    "strings_order": (c_bool, [c_void_p, c_int32, c_int32, *[c_void_p] * 4]),
    "hash": (None, [c_void_p, c_bool, c_void_p, c_int64, c_uint64, c_void_p]),
    "take_4": (None, [c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
    "take_8": (None, [c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
    "count": (None, [c_void_p, c_int64, c_void_p]),
    "group": (None, [c_void_p, c_int32, c_void_p, c_int64, c_void_p, c_void_p]),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled loops, or None where they cannot be had; the log says why, once a process."""
    return native.library(SOURCE, _FUNCTIONS, name="etl", instead="numpy and pyarrow do its part")


def text_arguments(strings: pa.Array) -> tuple[int, bool, int, int]:
    """Of string or large_string without nulls: offsets, whether they have 64 bits, text, how many."""
    large = pa.types.is_large_string(strings.type)
    _, offsets, text = strings.buffers()
    if not len(strings):
        return 0, large, 0, 0
    start = offsets.address + strings.offset * (8 if large else 4)
    return start, large, text.address if text is not None else 0, len(strings)
