"""The machine code of the compiled step."""

import ctypes
from ctypes import c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from graphmill.machine import native

SOURCE = Path(__file__).with_name("native") / "step.cpp"
FLAGS = native.FLAGS

# Result and arguments.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "workspace": (c_void_p, []),
    "free": (None, [c_void_p]),
    "bytes_of_real": (c_int, []),
    "has_half": (c_int, []),
    "step": (c_int, [*[c_void_p] * 5, c_int, c_int, c_void_p]),
}


@cache
def library(*, double: bool = False) -> ctypes.CDLL | None:
    """Build and load the code, or return None where it cannot be built; the log says why, once per process.

    With `double` it computes in float64, for tests.
    """
    flags = (*FLAGS, *(["-DDOUBLE"] if double else []))
    return native.library(SOURCE, _FUNCTIONS, name="training", instead="torch does the steps", flags=flags)
