"""safetensors files, read by ranges and written in batches, on any storage.

    8 bytes         length of the header, little endian
    header          JSON: {name: {dtype, shape, data_offsets}}, padded with spaces to 8 bytes
    the rest        the tensors' elements, without gaps

The library is not used, because it needs local files and whole tensors.
Source: safetensors' README.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphmill import storage
from graphmill.errors import FormatError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_OF_NUMPY = {
    torch.empty(0, dtype=dtype).numpy().dtype: dtype for dtype in NAMES if dtype is not torch.bfloat16
}
_MAX_HEADER_BYTES = 100_000_000
_ALIGNMENT = 8
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its elements are the bytes [start, stop)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """An open file, for reading tensors whole or by rows."""

    def __init__(self, stream: Any, uri: str) -> None:
        """Raises FormatError where the header is not that of a whole file."""
        self._stream, self._uri = stream, uri
        self.entries = _read_header(stream, uri)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """The tensor, or its rows [start, stop)."""
        entry = self.entries[name]
        shape, first, last = entry.shape, entry.start, entry.stop
        if stop is not None:
            row_bytes = math.prod(shape[1:]) * entry.dtype.itemsize
            first, last = entry.start + start * row_bytes, entry.start + stop * row_bytes
            shape = (stop - start, *shape[1:])
        if first == last:
            return torch.empty(shape, dtype=entry.dtype)
        self._stream.seek(first)
        content = bytearray(last - first)
        view, num_read = memoryview(content), 0
        while num_read < len(view) and (num := self._stream.readinto(view[num_read:])):
            num_read += num
        if num_read < len(view):
            raise FormatError(f"{self._uri}: {name!r}: expected {len(view)} bytes, found {num_read}")
        return torch.frombuffer(content, dtype=entry.dtype).reshape(shape)


class StoredRows(Protocol):
    """A numpy array, a torch tensor, or another object with slices of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, ...)."""

    @property
    def dtype(self) -> Any:
        """numpy's or torch's."""

    def __getitem__(self, rows: slice) -> Any:
        """Some rows, as an array or a tensor."""


@dataclass(frozen=True)
class BatchedRows:
    """Rows that come in order, in batches that are arrays or tensors."""

    shape: tuple[int, ...]
    dtype: Any
    batches: Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class NewTensor:
    """A tensor for writing, piece by piece."""

    key: str
    rows: StoredRows | BatchedRows

    @property
    def dtype(self) -> torch.dtype:
        """torch's dtype."""
        return dtype_of(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, ...)."""
        return tuple(map(int, self.rows.shape))

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def batches(self) -> Iterator[Any]:
        """Its rows, a few megabytes at a time."""
        if isinstance(self.rows, BatchedRows):
            yield from self.rows.batches()
            return
        if not self.shape:
            yield self.rows
            return
        num_rows = self.shape[0]
        batch_rows = max(1, _BATCH_BYTES * num_rows // max(self.num_bytes, 1))
        for start in range(0, num_rows, batch_rows):
            yield self.rows[start : min(start + batch_rows, num_rows)]


def write(uri: str, tensors: Sequence[NewTensor]) -> None:
    """Write a file, with one batch in memory."""
    # Wider elements first, so that all elements are aligned.
    ordered = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.key))
    header: dict[str, Any] = {}
    end = 0
    for tensor in ordered:
        dtype, shape, stop = NAMES[tensor.dtype], list(tensor.shape), end + tensor.num_bytes
        header[tensor.key] = {"dtype": dtype, "shape": shape, "data_offsets": [end, stop]}
        end = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with storage.atomic_output(uri) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in ordered:
            where, num_written = f"{uri}: {tensor.key!r}", 0
            for batch in tensor.batches():
                elements = _as_bytes(batch, tensor.dtype, where)
                stream.write(elements)
                num_written += len(elements)
            if num_written != tensor.num_bytes:
                raise FormatError(f"{where}: expected {tensor.num_bytes} bytes, found {num_written}")


def dtype_of(array: Any) -> torch.dtype:
    """torch's dtype of a numpy array or a torch tensor."""
    dtype = array.dtype
    known = dtype if isinstance(dtype, torch.dtype) else _OF_NUMPY.get(np.dtype(dtype))
    if known not in NAMES:
        raise FormatError(f"expected a tensor of one of {', '.join(DTYPES)}, found {dtype}")
    return known


def _as_bytes(array: Any, dtype: torch.dtype, where: str) -> npt.NDArray[np.uint8]:
    if dtype_of(array) != dtype:
        raise FormatError(f"{where}: expected {dtype}, found {array.dtype}")
    if isinstance(array, Tensor):
        return np.asarray(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _read_header(stream: Any, uri: str) -> dict[str, Entry]:
    file_bytes = stream.size()
    (length,) = struct.unpack("<Q", stream.read(8) or bytes(8)) if file_bytes >= 8 else (0,)
    if not 2 <= length <= min(_MAX_HEADER_BYTES, file_bytes - 8):
        raise FormatError(f"{uri}: expected a safetensors file, found something else or a part")
    header = storage.json_in(stream.read(length), f"{uri}: header")
    header.pop("__metadata__", None)
    end = 8 + length
    entries = {name: _entry(name, described, end, uri) for name, described in header.items()}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise FormatError(f"{uri}: {name!r}: expected its elements at byte {end}, found {entry.start}")
        end = entry.stop
    if end != file_bytes:
        raise FormatError(f"{uri}: expected {end} bytes, found {file_bytes}: the file is cut short or longer")
    return entries


def _entry(name: str, described: Any, base: int, uri: str) -> Entry:
    match described:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if (
            dtype in DTYPES
            and all(type(size) is int and size >= 0 for size in shape)
            and start >= 0
            and stop - start == math.prod(shape) * DTYPES[dtype].itemsize
        ):
            return Entry(DTYPES[dtype], tuple(shape), base + start, base + stop)
    raise FormatError(f"{uri}: {name!r}: expected dtype, shape, offsets that fit, found {described!r:.120}")
