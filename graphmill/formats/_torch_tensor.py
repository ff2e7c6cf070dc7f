"""One tensor in a `.pt` file, read by rows and without torch.

A `.pt` file is an uncompressed zip: `data.pkl` says in a few opcodes what the tensor is, `data/0` holds
its elements. The opcodes are looked at, never executed: whatever is not exactly one plain tensor goes to
`torch.load(weights_only=True)`, which knows older and rarer forms and refuses to run code. Reading so
saves each process torch's import (2 s, 600 MB), and rows are read as they are needed, from HDFS too.
"""

import io
import math
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.errors import FormatError

Array = npt.NDArray[Any]

BFLOAT16 = "bfloat16"  # numpy has none
_DTYPES = {
    "torch FloatStorage": "float32",
    "torch DoubleStorage": "float64",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": BFLOAT16,
    "torch LongStorage": "int64",
    "torch IntStorage": "int32",
    "torch ShortStorage": "int16",
    "torch CharStorage": "int8",
    "torch ByteStorage": "uint8",
    "torch BoolStorage": "bool",
}
_MAX_PICKLE_BYTES = 1 << 16
_LOCAL_HEADER_BYTES = 30


class TensorFile(Protocol):
    """An open `.pt` file: `dtype` is numpy's name, or bfloat16; rows are those of the first axis."""

    dtype: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop; bfloat16 comes as float32, which holds every value of it."""


@contextmanager
def open_tensor(uri: str) -> Iterator[TensorFile]:
    """The tensor in the file at `uri`, to be read within the block.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is cut short, or holds anything but one tensor with rows.
    """
    with storage.open_input(uri) as source:
        try:
            plain = _find_plain(source)
        except (
            zipfile.BadZipFile,
            _NotPlainError,
            LookupError,
            OSError,
            OverflowError,
            RuntimeError,
            ValueError,
        ):
            plain = None
        tensor: TensorFile = _PlainFile(uri, source, plain) if plain else _load_with_torch(uri)
        if not tensor.shape:
            raise FormatError(f"{uri}: expected a tensor with rows, found a single number")
        yield tensor


class _NotPlainError(Exception):
    """The file is not one plain contiguous tensor."""


@dataclass(frozen=True)
class _Plain:
    dtype: str
    shape: tuple[int, ...]
    first_byte: int


class _PlainFile:
    def __init__(self, uri: str, source: pa.NativeFile, plain: _Plain) -> None:
        self.dtype, self.shape = plain.dtype, plain.shape
        self._uri, self._source, self._first_byte = uri, source, plain.first_byte
        self._stored = np.dtype(np.uint16 if plain.dtype == BFLOAT16 else plain.dtype)

    def read(self, start: int, stop: int) -> Array:
        stop = min(stop, self.shape[0])
        row_bytes = math.prod(self.shape[1:]) * self._stored.itemsize
        self._source.seek(self._first_byte + start * row_bytes)
        content = self._source.read_buffer((stop - start) * row_bytes)
        if content.size != (stop - start) * row_bytes:
            raise FormatError(f"{self._uri}: expected rows {start} to {stop}, found the end of the file")
        rows = np.frombuffer(content, self._stored).reshape(stop - start, *self.shape[1:])
        return (rows.astype(np.uint32) << 16).view(np.float32) if self.dtype == BFLOAT16 else rows


class _LoadedFile:
    def __init__(self, dtype: str, rows: Array) -> None:
        self.dtype, self.shape, self._rows = dtype, rows.shape, rows

    def read(self, start: int, stop: int) -> Array:
        return self._rows[start:stop]


def _find_plain(source: pa.NativeFile) -> _Plain:
    size = source.size()
    with zipfile.ZipFile(source) as archive:
        pickled = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
        if len(pickled) != 1 or pickled[0].file_size > _MAX_PICKLE_BYTES:
            raise _NotPlainError
        folder = pickled[0].filename.removesuffix("data.pkl")
        dtype, key, num_stored, offset, shape, stride = _plain_tensor(archive.read(pickled[0]))
        if folder + "byteorder" in archive.namelist() and archive.read(folder + "byteorder") != b"little":
            raise _NotPlainError
        record = archive.getinfo(f"{folder}data/{key}")
    itemsize = 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize
    # Strides of axes that have but one element, or of no elements at all, say nothing.
    contiguous = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    is_contiguous = all(s == c or n <= 1 for s, c, n in zip(stride, contiguous, shape, strict=True))
    source.seek(record.header_offset)
    header = source.read(_LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    first_byte = record.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    fits = (
        header[:4] == b"PK\x03\x04"
        and record.compress_type == zipfile.ZIP_STORED
        and record.file_size == num_stored * itemsize
        and first_byte + record.file_size <= size
        and offset + math.prod(shape) <= num_stored
    )
    if not (fits and (is_contiguous or not math.prod(shape))):
        raise _NotPlainError
    return _Plain(dtype, shape, first_byte + offset * itemsize)


def _plain_tensor(pickled: bytes) -> tuple[str, str, int, int, tuple[int, ...], tuple[int, ...]]:
    """dtype, key and length of the storage, offset, shape, stride: what the opcodes of one tensor say."""
    match _described(pickled):
        case (
            "call",
            "torch._utils _rebuild_tensor_v2",
            (
                ("storage", ("storage", str(kind), str(key), _, int(num_stored))),
                int(offset),
                tuple(shape),
                tuple(stride),
                *_,
            ),
        ) if (
            kind in _DTYPES
            and key.isalnum()
            and len(shape) == len(stride)
            and all(type(each) is int and each >= 0 for each in (*shape, *stride, offset, num_stored))
        ):
            return _DTYPES[kind], key, num_stored, offset, shape, stride
    raise _NotPlainError


def _described(pickled: bytes) -> Any:
    """What a pickle would make, as nested tuples; nothing is called, and few opcodes are known."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickled):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "GLOBAL" | "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE" | "NONE":
                stack.append(opcode.name)
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                taken = _popped(stack, len(stack) - int(opcode.name[-1]))
                stack.append(taken)
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(_popped(stack, marks.pop() if marks else -1))
            case "BINPERSID":
                stack.append(("storage", *_popped(stack, len(stack) - 1)))
            case "REDUCE":
                stack.append(("call", *_popped(stack, len(stack) - 2)))
            case "BINPUT" | "LONG_BINPUT" if stack:
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET" if argument in memo:
                stack.append(memo[argument])
            case "STOP" if len(stack) == 1:
                return stack[0]
            case _:
                raise _NotPlainError
    raise _NotPlainError


def _popped(stack: list[Any], start: int) -> tuple[Any, ...]:
    if not 0 <= start <= len(stack):
        raise _NotPlainError
    taken = tuple(stack[start:])
    del stack[start:]
    return taken


def _load_with_torch(uri: str) -> TensorFile:
    """A file of another form, whole."""
    import torch

    from graphmill.formats._torch_checks import check_content, check_file

    stream = io.BytesIO(storage.read_bytes(uri))
    size_bytes = stream.getbuffer().nbytes
    check_file(stream, size_bytes, uri)
    stream.seek(0)
    try:
        with warnings.catch_warnings(action="ignore"):  # about forms that torch refuses next
            content = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever it meets: hostile files are refused here
        is_refused = isinstance(error, pickle.UnpicklingError)  # its advice is to load it nevertheless
        reason = "it asks for more than tensors" if is_refused else str(error).partition(". ")[0][:200]
        raise FormatError(
            f"{uri}: expected a file of one tensor, found damage or a part: {reason}"
        ) from error
    if not isinstance(content, torch.Tensor):
        raise FormatError(f"{uri}: expected one dense tensor, found {type(content).__name__}")
    check_content(content, size_bytes, uri)
    tensor = content.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES.values():
        raise FormatError(f"{uri}: expected a tensor of a usual type, found {name}")
    return _LoadedFile(name, (tensor.float() if name == BFLOAT16 else tensor).numpy())
