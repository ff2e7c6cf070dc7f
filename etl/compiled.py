"""Loops that numpy has no word for, compiled by numba when they first run."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, compiled; it lets other threads run. Its machine code is kept on disk where that can be."""
    try:
        machine_code = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's can be written: compiled in each process.
        machine_code = njit(nogil=True)(function)
    return cast(Callable[Parameters, Result], machine_code)
