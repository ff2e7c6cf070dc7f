"""The zip that torch.save() writes: uncompressed records, so that elements can be read from their place.

Rows of one tensor are read from there, from HDFS too.
"""

import math
import sys
import zipfile
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
        if self._stored_shape == self.shape:
            return self._read_stored(start, stop)
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


_MAGIC = b"PK\x03\x04"
_HEADER_BYTES = 30


class Archive:
    """The records of an open file."""

    def __init__(self, stream: Any, size_bytes: int, where: str) -> None:
        """Raises FormatError where records are packed or overlap; for damage, the errors of `zipfile`."""
        self._stream = stream
        self._zip = zipfile.ZipFile(stream)
        records = self._zip.infolist()
        is_packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
        if is_packed or sum(record.file_size for record in records) > size_bytes:
            raise FormatError(f"{where}: expected records as torch.save() writes them, found packed ones")

    def names(self, end: str = "") -> list[str]:
        """Names of the records that end with `end`."""
        return [name for name in self._zip.namelist() if name.endswith(end)]

    def pickles(self) -> list[bytes]:
        """The content of every pickle, also of pickles that share a name."""
        return [self.read(record) for record in self._zip.infolist() if record.filename.endswith(".pkl")]

    def read(self, record: str | zipfile.ZipInfo) -> bytes:
        """The content of a record."""
        # Not by ZipFile.read(), which compares the CRC: torch can leave it out, and does not compare it.
        first_byte, num_bytes = self.place(record)
        self._stream.seek(first_byte)
        return bytes(self._stream.read(num_bytes))

    def place(self, record: str | zipfile.ZipInfo) -> tuple[int, int]:
        """First byte in the file, and number of bytes, of a record."""
        entry = self._zip.getinfo(record) if isinstance(record, str) else record
        self._stream.seek(entry.header_offset)
        header = self._stream.read(_HEADER_BYTES)
        if header[: len(_MAGIC)] != _MAGIC:
            raise zipfile.BadZipFile(f"no record at byte {entry.header_offset}")
        name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return entry.header_offset + _HEADER_BYTES + name_bytes + extra_bytes, entry.file_size

    def is_native(self) -> bool:
        """Tell whether the elements have the byte order of this machine."""
        return all(self.read(name) == sys.byteorder.encode() for name in self.names("/byteorder"))


def is_archive(stream: Any) -> bool:
    """Tell whether the file begins like a zip, which is how torch.load() decides."""
    stream.seek(0)
    return bool(stream.read(len(_MAGIC)) == _MAGIC)
