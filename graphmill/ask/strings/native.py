"""Loops of gather.cpp, built into the wheel or compiled at the first use.

Without either, pyarrow does the same work more slowly.
"""

from ctypes import c_bool, c_int64, c_void_p
from pathlib import Path

from graphmill.machine import native

SOURCE = Path(__file__).with_name("gather.cpp")

# Result and arguments; an argument without another type is a pointer.
library = native.loader(
    SOURCE,
    {
        "locate": (c_int64, [c_void_p, c_bool, c_void_p, c_int64, *[c_void_p] * 3]),
        "hash": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
        "copy": (None, [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    },
    name="remap",
    instead="pyarrow looks the ids up",
)
