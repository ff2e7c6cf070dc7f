"""The loops that pyarrow has no word for: native/gather.cpp, compiled on this machine when first wanted.

Where there is no compiler, pyarrow does the same, more slowly.
"""

import ctypes
from ctypes import c_bool, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from graphmill.machine import native

SOURCE = Path(__file__).with_name("gather.cpp")

# Result, and arguments: pointers, but for what is said.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "locate": (c_int64, [c_void_p, c_bool, c_void_p, c_int64, *[c_void_p] * 3]),
    "hash": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "copy": (None, [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled loops, or None where they cannot be had; the log says why, once a process."""
    return native.library(SOURCE, _FUNCTIONS, name="remap", instead="pyarrow looks the ids up")
