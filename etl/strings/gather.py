"""Looking values up by their numbers, row after row: numpy would first copy int32 numbers as int64."""

import ctypes
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from etl.strings import native
from graphmill.machine.native import address

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Value = TypeVar("Value", bound=np.generic)

NOWHERE = -1


def taken(values: npt.NDArray[Value], at_N: Int32) -> npt.NDArray[Value]:
    """The value at each of N places, all of them 0 <= place < len(values); a place of -1 is the last.

    Values have 4 or 8 bytes.
    """
    library = native.library()
    if library is None:
        return values[at_N]
    found = np.empty(len(at_N), values.dtype)
    take = {4: library.graphmill_take_4, 8: library.graphmill_take_8}[values.itemsize]
    take(address(values), len(values), address(at_N), len(at_N), address(found))
    return found


def counted(at_N: Int32, num_places: int) -> Int64:
    """How often each place occurs; `NOWHERE` is none."""
    library = native.library()
    if library is None:
        return np.bincount(at_N[at_N != NOWHERE], minlength=num_places).astype(np.int64)
    counts = np.zeros(num_places, np.int64)
    library.graphmill_count(address(at_N), len(at_N), address(counts))
    return counts


def grouped(columns: Sequence[Int32], group_N: Int32, num_groups: int) -> tuple[Int64, Int32]:
    """Rows of [N] columns group by group, in each as they come; those that are `NOWHERE` are left out.

    Returns:
        starts int64 [num_groups + 1], records int32 [rows, columns]: group g is starts[g] to starts[g + 1].
    """
    starts = np.zeros(num_groups + 1, np.int64)
    np.cumsum(counted(group_N, num_groups), out=starts[1:])
    records = np.empty((starts[-1], len(columns)), np.int32)
    library = native.library()
    if library is None:
        order = np.argsort(group_N, kind="stable")[len(group_N) - len(records) :]  # NOWHERE is the least
        for number, column in enumerate(columns):
            records[:, number] = column[order]
    else:
        addresses = (ctypes.c_void_p * len(columns))(*map(address, columns))
        free = starts.copy()  # where the next row of a group goes
        library.graphmill_group(
            addresses, len(columns), address(group_N), len(group_N), address(free), address(records)
        )
    return starts, records
