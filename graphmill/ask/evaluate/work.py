"""Arrays that tasks of an evaluation leave for later tasks: files in a work folder, without headers.

{work folder}/{part of the edges}/
    edges           int64 [3, E]: lhs, rel, rhs by number, in the order of the split
    known-{side}-{task}     int64 [K]: known cells, sorted (`known`)
    rows-{type}-{partition} float32 [n, D]: vectors of the ranked edges' entities, by row
    queries-{side}  float32 [Q, D]         own-{side}  float64 [E]: scores of the edges themselves
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError


def save(folder: str, name: str, array: npt.NDArray[np.generic]) -> None:
    """Write an array; a task that runs twice writes the same bytes."""
    with storage.atomic_output(storage.join(folder, name)) as stream:
        stream.write(np.ascontiguousarray(array).data)


def load(
    folder: str, name: str, dtype: npt.DTypeLike, columns: int = 1, start: int = 0, stop: int | None = None
) -> npt.NDArray[Any]:
    """Rows start..stop (None: to the end) of an array with so many columns: [n, columns]."""
    with storage.open_input(storage.join(folder, name)) as stream:
        row_bytes = columns * np.dtype(dtype).itemsize
        end = stream.size() // row_bytes if stop is None else stop
        rows = np.empty((end - start, columns), dtype)
        stream.seek(start * row_bytes)
        if rows.size and (size := stream.readinto(rows.reshape(-1).view(np.uint8))) != rows.nbytes:
            raise FormatError(f"{storage.join(folder, name)}: expected {rows.nbytes} bytes, found {size}")
    return rows
