"""Rows of one tensor, read from their place in a `.pt` file, from HDFS too."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.errors import FormatError

Array = npt.NDArray[Any]

BFLOAT16 = "bfloat16"  # numpy has none

DTYPES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""The dtype of each of torch's storages."""


class TensorRows:
    """Rows of a contiguous tensor, those of its first axis, read piece by piece.

    The elements begin at `first_byte` of `source`; `dtype` is numpy's name, or bfloat16. An expanded tensor
    has the shape `stored_shape` in the file, with 1 element along each axis that repeats it.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        uri: str,
        dtype: str,
        shape: tuple[int, ...],
        first_byte: int,
        stored_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._source, self._uri, self._first_byte = source, uri, first_byte
        self._stored_shape = shape if stored_shape is None else stored_shape
        self._stored = np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)

    def read(self, start: int, stop: int) -> Array:
        """Rows [start, stop); bfloat16 comes as float32, which holds every value of it."""
        stop = min(stop, self.shape[0])
        if self._stored_shape != self.shape:
            return self._read_expanded(start, stop)
        return self._read_stored(start, stop)

    def _read_expanded(self, start: int, stop: int) -> Array:
        wanted = (0, 1) if self._stored_shape[0] == 1 else (start, stop)
        return np.broadcast_to(self._read_stored(*wanted), (stop - start, *self.shape[1:]))

    def _read_stored(self, start: int, stop: int) -> Array:
        row_bytes = math.prod(self._stored_shape[1:]) * self._stored.itemsize
        self._source.seek(self._first_byte + start * row_bytes)
        content = self._source.read_buffer((stop - start) * row_bytes)
        if content.size != (stop - start) * row_bytes:
            raise FormatError(f"{self._uri}: expected rows {start} to {stop}, found the end of the file")
        rows = np.frombuffer(content, self._stored).reshape(stop - start, *self._stored_shape[1:])
        return (rows.astype(np.uint32) << 16).view(np.float32) if self.dtype == BFLOAT16 else rows


class UnusualError(Exception):
    """The form of a file is not known here; torch may read it."""
