"""Loops of gather.cpp, built into the wheel or compiled at the first use.

Without either, pyarrow does the same work more slowly.
"""

import ctypes
from ctypes import c_bool, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from graphmill.machine import native

SOURCE = Path(__file__).with_name("gather.cpp")

# Result and arguments; an argument without another type is a pointer.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "locate": (c_int64, [c_void_p, c_bool, c_void_p, c_int64, *[c_void_p] * 3]),
    "hash": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "copy": (None, [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
}


@cache
def library() -> ctypes.CDLL | None:
    """Load the compiled loops; None without a build and a compiler, and the log says why, once a process."""
    return native.library(SOURCE, _FUNCTIONS, name="remap", instead="pyarrow looks the ids up")
