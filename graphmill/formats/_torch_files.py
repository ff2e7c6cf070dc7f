"""What torch.save() wrote, read safely and by rows.

Only tensors and plain values are unpickled (`weights_only=True`); anything else is refused by its name.
Tensors are first loaded as shapes alone; their elements are read where they lie in the file, from HDFS
too, so that a table need not fit into memory. There are two forms:

    since torch 1.6   an uncompressed zip; each storage is a record
    before            pickles: magic number, protocol, system, content, keys of the storages; then the
                      storages in the order of the keys: int64 number of elements, the elements
"""

import io
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._weights_only_unpickler import Unpickler
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats._torch_checks import check_content, check_file

Floats = npt.NDArray[np.float32]

_REFUSED = re.compile(r"(?:GLOBAL|global|class) ([A-Za-z_][\w.]*\.[\w.]+)")
_ZIP_MAGIC = b"PK\x03\x04"
_ZIP_HEADER_BYTES = 30
_BUFFER_BYTES = 1 << 16


class TensorRows:
    """Rows of a float tensor [N, D] in a file, read piece by piece; a tensor [N] has rows of one number."""

    def __init__(self, tensor: Tensor, stream: Any, first_byte: int | None, uri: str) -> None:
        """`tensor` is a shape alone if `first_byte` says where its elements are, else it has them."""
        if not tensor.is_floating_point() or tensor.dim() not in (1, 2):
            raise FormatError(f"{uri}: expected floats (count, dimension), found {described(tensor)}")
        self._tensor, self._stream, self._first_byte, self._uri = tensor, stream, first_byte, uri

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self._tensor.shape[0], self._tensor.shape[1] if self._tensor.dim() == 2 else 1

    def read(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) as float32 [n, D], whatever the file has."""
        stop = min(stop, self.shape[0])
        shape = (stop - start, self.shape[1])
        if self._first_byte is None:
            return np.asarray(self._tensor[start:stop].detach().reshape(shape).float().numpy())
        row_bytes = self.shape[1] * self._tensor.element_size()
        content = bytearray(shape[0] * row_bytes)
        if not content:
            return np.empty(shape, np.float32)
        self._stream.seek(self._first_byte + start * row_bytes)
        if _read_into(self._stream, content) != len(content):
            raise FormatError(f"{self._uri}: expected rows {start} to {stop}, found the end of the file")
        return np.asarray(torch.frombuffer(content, dtype=self._tensor.dtype).reshape(shape).float().numpy())


class TorchFile:
    """An open file: `content`, whose tensors are shapes alone, and the way to their elements."""

    def __init__(self, stream: Any, size_bytes: int, uri: str) -> None:
        self._stream, self._uri = stream, uri
        self._first_bytes: dict[int, int] = {}
        check_file(stream, size_bytes, uri)
        try:
            self.content, starts = _load_shapes(stream, size_bytes, uri)
            self._locate(tensors_of(self.content), starts, size_bytes)
        except Exception:  # damage, or what is not known here: torch says what it is, or reads it whole
            self._first_bytes.clear()
            self.content = load_stream(stream, size_bytes, uri)

    def rows(self, tensor: Tensor) -> TensorRows:
        """Rows of a tensor in `content`."""
        return TensorRows(tensor, self._stream, self._first_bytes.get(id(tensor)), self._uri)

    def loaded(self, value: Any) -> Any:
        """`value`, a part of `content`, with its tensors' elements."""
        return mapped(value, self._load) if self._first_bytes else value

    def _load(self, tensor: Tensor) -> Tensor:
        content = bytearray(tensor.numel() * tensor.element_size())
        if not content:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        self._stream.seek(self._first_bytes[id(tensor)])
        if _read_into(self._stream, content) != len(content):
            raise FormatError(f"{self._uri}: expected {described(tensor)}, found the end of the file")
        return torch.frombuffer(content, dtype=tensor.dtype).reshape(tensor.shape)

    def _locate(self, tensors: list[Tensor], starts: Mapping[int, int], size_bytes: int) -> None:
        for tensor in tensors:
            start = starts[tensor.untyped_storage()._cdata]
            first = start + int(tensor.storage_offset()) * tensor.element_size()
            num_bytes = tensor.numel() * tensor.element_size()
            offset_bytes = first - start
            fits = offset_bytes + num_bytes <= tensor.untyped_storage().nbytes()
            if not (tensor.is_contiguous() and fits and first + num_bytes <= size_bytes):
                raise _UnusualError
            self._first_bytes[id(tensor)] = first


class _UnusualError(Exception):
    """Torch may read the file; where the elements lie is not known here."""


@contextmanager
def open_torch(uri: str) -> Iterator[TorchFile]:
    """The file at `uri`, to be read within the block.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not what torch.save() writes, or holds more than tensors and plain values.
    """
    with storage.open_input(uri) as source, io.BufferedReader(source, _BUFFER_BYTES) as stream:
        yield TorchFile(stream, source.size(), uri)


def load(uri: str) -> Any:
    """All that is in the file, in memory.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not what torch.save() writes, or holds more than tensors and plain values.
    """
    with open_torch(uri) as file:
        return file.loaded(file.content)


def load_stream(stream: Any, size_bytes: int, where: str) -> Any:
    """Load what torch.save() wrote to `stream`.

    Raises:
        FormatError: it is something else, or more than tensors and plain values; or more than it can hold.
    """
    check_file(stream, size_bytes, where)
    content = _unpickled_by_torch(stream, where, "cpu")
    check_content(content, size_bytes, where)
    return content


def _unpickled_by_torch(stream: Any, where: str, device: str) -> Any:
    stream.seek(0)
    try:
        return torch.load(stream, map_location=device, weights_only=True)
    except Exception as error:  # hostile bytes make the unpickler raise nearly anything
        text = str(error)
        refused = _REFUSED.search(text)
        found = f"the type {refused[1]}" if refused else text.partition("\n")[0][:200] or type(error).__name__
        raise FormatError(
            f"{where}: expected what torch.save() wrote, tensors and plain values only, found {found}; "
            "nothing else is loaded, for it could run code"
        ) from error


def _load_shapes(stream: Any, size_bytes: int, uri: str) -> tuple[Any, dict[int, int]]:
    """The content with tensors that are shapes alone, and the first byte of each of their storages."""
    if not _is_zip(stream):
        content, starts = _load_old_shapes(stream)
        check_content(content, size_bytes, uri, "meta")
        return content, starts
    content = _unpickled_by_torch(stream, uri, "meta")
    check_content(content, size_bytes, uri, "meta")
    return content, _zip_starts(stream, tensors_of(content))


def _is_zip(stream: Any) -> bool:
    stream.seek(0)
    return bool(stream.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC)


def described(value: Any) -> str:
    """Type of a value; dtype and shape of a tensor."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def mapped(value: Any, function: Any, *types: type) -> Any:
    """`value`, nested mappings and sequences, with `function` applied to what is of the `types` (tensors)."""
    if isinstance(value, types or Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: mapped(each, function, *types) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mapped(each, function, *types) for each in value])
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in nested mappings and sequences, in the order in which they were pickled."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


def _zip_starts(stream: Any, tensors: list[Tensor]) -> dict[int, int]:
    """First byte of each storage, as torch found it and the zip's own directory confirms."""
    records: dict[int, int] = {}
    with zipfile.ZipFile(stream) as archive:
        byteorders = [
            archive.read(each) for each in archive.infolist() if each.filename.endswith("/byteorder")
        ]
        for record in archive.infolist():
            if record.compress_type == zipfile.ZIP_STORED:
                stream.seek(record.header_offset)
                header = stream.read(_ZIP_HEADER_BYTES)
                name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
                first = record.header_offset + _ZIP_HEADER_BYTES + name_bytes + extra_bytes
                records[first] = record.file_size
    if any(each != sys.byteorder.encode() for each in byteorders):
        raise _UnusualError
    starts = {}
    for tensor in tensors:
        stored = tensor.untyped_storage()
        start = getattr(stored, "_checkpoint_offset", None)
        if start is None or records.get(start) != stored.nbytes():
            raise _UnusualError
        starts[stored._cdata] = start
    return starts


def _load_old_shapes(stream: Any) -> tuple[Any, dict[int, int]]:
    """The content of an old file, by torch's own unpickler for weights, with storages that take no memory.

    torch.load() has memory for every storage before it looks at what is asked for.
    """
    untyped: Any = torch.UntypedStorage
    typed: Any = torch.storage.TypedStorage
    storages: dict[str, tuple[torch.UntypedStorage, int]] = {}

    def find_storage(persistent_id: Any) -> Any:
        _, kind, key, _, numel, view = persistent_id
        if view is not None:
            raise _UnusualError
        if key not in storages:
            num_bytes = numel * kind.dtype.itemsize
            storages[key] = untyped(num_bytes, device="meta"), kind.dtype.itemsize
        return typed(wrap_storage=storages[key][0], dtype=kind.dtype, _internal=True)

    stream.seek(0)
    magic, protocol, system = (_unpickled(stream) for _ in range(3))
    if (magic, protocol) != (MAGIC_NUMBER, PROTOCOL_VERSION):
        raise _UnusualError
    if system["little_endian"] != (sys.byteorder == "little"):
        raise _UnusualError
    content = _unpickled(stream, find_storage)
    starts: dict[int, int] = {}
    keys = _unpickled(stream)
    position = stream.tell()
    for key in keys:
        stored, itemsize = storages[key]
        stream.seek(position)
        if struct.unpack("<q", stream.read(8))[0] * itemsize != stored.nbytes():
            raise _UnusualError
        starts[stored._cdata] = position + 8
        position += 8 + stored.nbytes()
    return content, starts


def _unpickled(stream: Any, find_storage: Callable[[Any], Any] | None = None) -> Any:
    """The next pickle: what weights may consist of, and nothing else."""
    unpickler: Any = Unpickler(stream)
    unpickler.persistent_load = find_storage
    return unpickler.load()


def _read_into(stream: Any, buffer: bytearray) -> int:
    view, num_read = memoryview(buffer), 0
    while num_read < len(view) and (num := stream.readinto(view[num_read:])):
        num_read += num
    return num_read
