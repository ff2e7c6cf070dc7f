"""A `.pt` file of one tensor, read by rows and without torch, and the zip that torch.save() writes.

Its records are uncompressed, so that elements can be read from their place, from HDFS too. `data.pkl`
describes the tensor in a few opcodes, which are inspected and never executed. A file that is not exactly one
plain tensor, contiguous or expanded, is read by `torch_files.read`, which knows older and rarer forms.
A process without torch starts 2 s sooner with 600 MB less.
"""

import math
import pickletools
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
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
            raise FormatError(
                f"{where}: expected records as they are, as torch.save() writes, found packed ones"
            )

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
        """Whether the elements have the byte order of this machine."""
        return all(self.read(name) == sys.byteorder.encode() for name in self.names("/byteorder"))


def is_archive(stream: Any) -> bool:
    """Whether the file begins like a zip, which is how torch.load() decides."""
    stream.seek(0)
    return bool(stream.read(len(_MAGIC)) == _MAGIC)


_MAX_PICKLE_BYTES = 1 << 16
# A few bytes may claim any number of elements, so an expanded tensor has at most so many, in all and per row.
_MAX_EXPANDED = 1 << 32
_MAX_EXPANDED_WIDTH = 1 << 20

# The pickle of a plain tensor, disassembled, without the opcodes that leave the value as it is.
_LEFT_OUT = {"PROTO", "FRAME", "BINPUT", "LONG_BINPUT"}
_INTEGER = r"(?:BININT[12]?|LONG1) (\d+) "
_I = r"(?:BININT[12]?|LONG1) \d+ "
_INTEGERS = f"(EMPTY_TUPLE|{_I}TUPLE1|{_I}{_I}TUPLE2|{_I}{_I}{_I}TUPLE3|MARK (?:{_I})*TUPLE) "
_PLAIN_TENSOR = re.compile(
    r"GLOBAL 'torch\._utils _rebuild_tensor_v2' MARK MARK BINUNICODE 'storage' GLOBAL 'torch (\w+)' "
    r"BINUNICODE '(\w+)' BINUNICODE '[\w:]+' "  # the name of the storage, the device
    f"{_INTEGER}TUPLE BINPERSID "  # the length of the storage
    f"{_INTEGER}{_INTEGERS}{_INTEGERS}"  # the offset, the shape, the stride
    "NEW(?:FALSE|TRUE) GLOBAL 'collections OrderedDict' EMPTY_TUPLE REDUCE TUPLE REDUCE STOP "
)


@contextmanager
def open_tensor(uri: str) -> Iterator[TensorRows]:
    """The tensor in the file at `uri`, to be read within the block."""
    with storage.open_input(uri) as source:
        try:
            plain: TensorRows | None = _plain_rows(source, uri)
        except Exception:  # damage, which torch names, or another form, which torch reads
            plain = None
        if plain is not None:
            yield _with_rows(plain, uri)
            return
    from graphmill.formats.torch_files.read import open_torch

    with open_torch(uri, "a file of one tensor") as file:
        dtype = str(getattr(file.content, "dtype", "")).removeprefix("torch.")
        if not dtype:
            raise FormatError(f"{uri}: expected one dense tensor, found {type(file.content).__name__}")
        if dtype not in DTYPES.values():
            raise FormatError(f"{uri}: expected a tensor of a usual type, found {dtype}")
        yield _with_rows(file.rows(file.content), uri)


def _with_rows(tensor: TensorRows, uri: str) -> TensorRows:
    if not tensor.shape:
        raise FormatError(f"{uri}: expected a tensor with rows, found a single number")
    return tensor


def _plain_rows(source: pa.NativeFile, uri: str) -> TensorRows:
    if not is_archive(source):
        raise UnusualError
    size_bytes = source.size()
    archive = Archive(source, size_bytes, uri)
    (pickle_name,) = archive.names("/data.pkl")
    if archive.place(pickle_name)[1] > _MAX_PICKLE_BYTES or not archive.is_native():
        raise UnusualError
    dtype, key, num_stored, offset, shape, stride = _plain_tensor(archive.read(pickle_name))
    first_byte, num_bytes = archive.place(f"{pickle_name.removesuffix('data.pkl')}data/{key}")
    itemsize = 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize
    stored_shape = tuple(1 if num > 1 and not step else num for num, step in zip(shape, stride, strict=True))
    fits = (
        num_bytes == num_stored * itemsize
        and first_byte + num_bytes <= size_bytes
        and offset + math.prod(stored_shape) <= num_stored
    )
    if not (fits and _is_regular(shape, stored_shape, stride)):
        raise UnusualError
    return TensorRows(source, uri, dtype, shape, first_byte + offset * itemsize, stored_shape)


def _is_regular(shape: tuple[int, ...], stored_shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements lie one after the other, and repeat themselves to a fair size at most."""
    if not math.prod(shape):
        return True  # strides of a tensor without elements, or of axes with one, have no meaning
    if shape != stored_shape and (
        math.prod(shape) > _MAX_EXPANDED or math.prod(shape[1:]) > _MAX_EXPANDED_WIDTH
    ):
        return False
    contiguous = [math.prod(stored_shape[axis + 1 :]) for axis in range(len(shape))]
    return all(s == c or n <= 1 for s, c, n in zip(stride, contiguous, stored_shape, strict=True))


def _plain_tensor(pickled: bytes) -> tuple[str, str, int, int, tuple[int, ...], tuple[int, ...]]:
    """dtype, key and length of the storage, offset, shape, stride, from the opcodes of one tensor."""
    text = "".join(
        f"{opcode.name} " if argument is None else f"{opcode.name} {argument!r} "
        for opcode, argument, _ in pickletools.genops(pickled)
        if opcode.name not in _LEFT_OUT
    )
    match = _PLAIN_TENSOR.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        raise UnusualError
    shape, stride = (tuple(map(int, re.findall(r" (\d+)", match[group]))) for group in (5, 6))
    return DTYPES[match[1]], match[2], int(match[3]), int(match[4]), shape, stride
