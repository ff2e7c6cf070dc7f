"""Check for NaN and infinity in vectors, sums and parameters."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError

_PIECE_ROWS = 1 << 16

REMEDY = "go back to a checkpoint without such, or train again with a lower lr"


def first_not_finite(values: npt.NDArray[Any]) -> int | None:
    """The first row with NaN or infinity, or None. A finite sum, which needs no memory, mostly settles it."""
    if values.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum(dtype=np.float32 if values.itemsize == 2 else None)):
            return None
    rows = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    for start in range(0, len(rows), _PIECE_ROWS):
        wrong = np.flatnonzero(~np.isfinite(rows[start : start + _PIECE_ROWS]).all(axis=1))
        if len(wrong):
            return start + int(wrong[0])
    return None


def check_finite(values: npt.NDArray[Any], where: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity; the first value is in row `first_row` of `where`."""
    if (row := first_not_finite(values)) is not None:
        numbers = values.reshape(len(values), -1)[row] if values.ndim else values.reshape(1)
        number = numbers[~np.isfinite(numbers)][0]
        raise FormatError(
            f"{where}: row {first_row + row}: expected finite numbers, found {number}; {REMEDY}"
        )
