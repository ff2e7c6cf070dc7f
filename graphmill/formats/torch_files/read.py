"""Reads `.pt` files of any content: shapes of tensors first, their elements on request.

So a table of embeddings may be larger than the memory. A file of an unusual form is loaded whole.

Checks of foreign files before torch.load(): the content must be no larger than the file.

torch.load() unpickles only weights. But a few bytes can make it allocate any memory: by packed records,
arrays created from a length, tensors that repeat one element, and values that contain each other many times.
"""

import io
import math
import pickle
import pickletools
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, strided
from torch._weights_only_unpickler import Unpickler
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.torch_files.stored import BFLOAT16, Archive, TensorRows, UnusualError, is_archive

_REFUSED = re.compile(r"(?:GLOBAL|global|class) ([A-Za-z_][\w.]*\.[\w.]+)")
_BUFFER_BYTES = 1 << 16

Starts = Mapping[int, int]
"""First byte in the file of each storage, by the address of the storage."""

ANYTHING = "what torch.save() wrote, tensors and plain values only"

_NUM_PICKLES = 5  # of the older form
_MIN_VALUES = 1 << 16  # any file may hold so many, however small
_MAX_DEPTH = 100
_MADE_BY_LENGTH = re.compile(
    r"(builtins|__builtin__) bytearray|torch(\.\w+)* \w*Tensor|torch\._utils _rebuild_(sparse|nested)_tensor"
)


def check_file(stream: Any, size_bytes: int, where: str, expected: str) -> Archive | None:
    """Refuse a file that torch would unpack to more than its size; return its zip (older form: None)."""
    archive = None
    is_zip = is_archive(stream)
    try:
        if is_zip:
            archive = Archive(stream, size_bytes, where)
        stream.seek(0)
        for pickled in archive.pickles() if archive else [stream] * _NUM_PICKLES:
            _check_pickle(pickled, where)
    except FormatError:
        raise
    except Exception as error:  # damage makes zipfile and pickletools raise nearly anything
        if is_zip:  # of an older file, torch names the damage
            raise FormatError(f"{where}: expected {expected}, found damage or a part: {error}") from error
    return archive


def _check_pickle(pickled: Any, where: str) -> None:
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and _MADE_BY_LENGTH.fullmatch(str(argument)):
            kind = str(argument).replace(" ", ".")
            raise FormatError(
                f"{where}: expected what torch.save() wrote, found the type {kind}; "
                "nothing else is loaded, for a few bytes of it could take any memory"
            )


def check_content(content: Any, size_bytes: int, where: str, device: str = "cpu") -> None:
    """Refuse values that are more than a file of `size_bytes` can hold."""
    stored: dict[int, int] = {}
    num_left = max(_MIN_VALUES, size_bytes)
    left = [(content, 0)]
    while left:
        value, depth = left.pop()
        num_left -= 1
        if depth > _MAX_DEPTH or num_left < 0:
            raise FormatError(f"{where}: expected trees of values, found some that hold each other endlessly")
        if isinstance(value, Tensor):
            _check_tensor(value, where, device)
            stored[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping | list | tuple | set):
            inner = value.values() if isinstance(value, Mapping) else value
            left += [(part, depth + 1) for part in inner]
    if sum(stored.values()) > size_bytes:
        raise FormatError(f"{where}: expected tensors of {sum(stored.values())} bytes, found {size_bytes}")


def _check_tensor(tensor: Tensor, where: str, device: str) -> None:
    shape = tuple(tensor.shape)
    if tensor.layout != strided or tensor.is_quantized or tensor.is_nested:
        raise FormatError(f"{where}: expected a plain dense tensor, found {tensor.layout} {shape}")
    if tensor.device.type != device:
        raise FormatError(
            f"{where}: expected a tensor with its elements, found a shape alone, {shape} on the device "
            f"{tensor.device.type!r}; save it from a device that holds them"
        )
    if math.prod(shape) * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise FormatError(f"{where}: expected a tensor, found one that repeats itself {shape}")


class TorchFile:
    """An open file. The tensors of `content` have shapes only; `rows` and `loaded` read their elements."""

    def __init__(
        self,
        source: pa.NativeFile,
        stream: Any,
        uri: str,
        expected: str,
        memory: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """`stream` is a buffered reader of `source`; nothing is read from it afterwards.

        `memory` has the bytes of `source`, where they are in memory: loaded tensors then share it.
        """
        self._source, self._uri, self._memory = source, uri, memory
        self._first_bytes: dict[int, int] = {}
        size_bytes = source.size()
        archive = check_file(stream, size_bytes, uri, expected)
        try:
            if archive:
                if not archive.is_native():  # torch would swap the bytes of shapes alone, and crash
                    raise UnusualError
                self.content = _load_by_torch(stream, uri, "meta")
            else:
                self.content, starts = _load_old_shapes(stream)
            check_content(self.content, size_bytes, uri, "meta")  # before anything walks through the content
            if archive:
                starts = _zip_starts(archive, tensors_of(self.content))
            for tensor in tensors_of(self.content):
                self._first_bytes[id(tensor)] = _first_byte(tensor, starts, size_bytes)
        except Exception:  # damage, which torch names, or an unusual form, which torch reads whole
            self._first_bytes.clear()
            self.content = _load_by_torch(stream, uri, "cpu", expected)
            check_content(self.content, size_bytes, uri)

    def rows(self, tensor: Tensor) -> TensorRows:
        """Rows of a tensor in `content`."""
        dtype, source = str(tensor.dtype).removeprefix("torch."), self._source
        first_byte = self._first_bytes.get(id(tensor))
        if first_byte is None:
            stored = (tensor.view(torch.int16) if dtype == BFLOAT16 else tensor).detach().contiguous()
            source, first_byte = pa.BufferReader(stored.numpy()), 0
        return TensorRows(source, self._uri, dtype, tuple(tensor.shape), first_byte)

    def loaded(self, value: Any) -> Any:
        """`value`, a part of `content`, with the elements of its tensors."""
        return mapped(value, self._load) if self._first_bytes else value

    def _load(self, tensor: Tensor) -> Tensor:
        num_bytes = tensor.numel() * tensor.element_size()
        if not num_bytes:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        first_byte = self._first_bytes[id(tensor)]
        if self._memory is not None and not first_byte % tensor.element_size():
            content = self._memory[first_byte : first_byte + num_bytes]
        else:
            self._source.seek(first_byte)
            content = np.frombuffer(self._source.read_buffer(num_bytes), np.uint8)
        if len(content) != num_bytes:
            raise FormatError(f"{self._uri}: expected {described(tensor)}, found the end of the file")
        writable = np.require(content, requirements="W")  # as torch wants it
        return torch.from_numpy(writable).view(tensor.dtype).reshape(tensor.shape)


@contextmanager
def open_torch(uri: str, expected: str = ANYTHING) -> Iterator[TorchFile]:
    """The file at `uri`, to be read within the block; `expected` is for messages."""
    with storage.open_input(uri) as source, io.BufferedReader(source, _BUFFER_BYTES) as stream:
        yield TorchFile(source, stream, uri, expected)


def load(uri: str) -> Any:
    """The whole content of the file, in memory."""
    with open_torch(uri) as file:
        return file.loaded(file.content)


def load_bytes(content: npt.NDArray[np.uint8], where: str) -> Any:
    """The whole content of a file in memory, bytes that may be written to; the tensors share the memory."""
    with pa.BufferReader(pa.py_buffer(content)) as source, io.BufferedReader(source, _BUFFER_BYTES) as stream:
        file = TorchFile(source, stream, where, ANYTHING, content)
        return file.loaded(file.content)


def described(value: Any) -> str:
    """Type of a value; dtype and shape of a tensor."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Nested mappings and sequences with `function` applied to the tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: mapped(inner, function) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mapped(inner, function) for inner in value])
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in nested mappings and sequences, in the order in which they were pickled."""
    tensors: list[Tensor] = []
    mapped(value, tensors.append)
    return tensors


def _load_by_torch(stream: Any, where: str, device: str, expected: str = ANYTHING) -> Any:
    stream.seek(0)
    try:
        with warnings.catch_warnings(action="ignore"):  # about forms that torch refuses next
            return torch.load(stream, map_location=device, weights_only=True)
    except Exception as error:  # hostile bytes make the unpickler raise nearly anything
        if refused := _REFUSED.search(str(error)):
            problem = f"the type {refused[1]}; nothing else is loaded, for it could run code"
        elif isinstance(error, pickle.UnpicklingError):  # its own text advises to load the file nevertheless
            problem = "damage or a part: it asks for more than tensors"
        else:
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            problem = f"damage or a part: {reason}"
        raise FormatError(f"{where}: expected {expected}, found {problem}") from error


def _zip_starts(archive: Archive, tensors: list[Tensor]) -> Starts:
    places = dict(map(archive.place, archive.names()))
    starts = {}
    for tensor in tensors:
        stored = tensor.untyped_storage()
        start = getattr(stored, "_checkpoint_offset", None)  # torch's, which the zip's directory confirms
        if start is None or places.get(start) != stored.nbytes():
            raise UnusualError
        starts[stored._cdata] = start
    return starts


def _first_byte(tensor: Tensor, starts: Starts, size_bytes: int) -> int:
    stored, itemsize = tensor.untyped_storage(), tensor.element_size()
    offset_bytes, num_bytes = int(tensor.storage_offset()) * itemsize, tensor.numel() * itemsize
    first_byte = starts[stored._cdata] + offset_bytes
    fits = offset_bytes + num_bytes <= stored.nbytes() and first_byte + num_bytes <= size_bytes
    if not (tensor.is_contiguous() and fits):
        raise UnusualError
    return first_byte


def _load_old_shapes(stream: Any) -> tuple[Any, Starts]:
    """Load an older file by torch's unpickler, but no storages: torch.load() would allocate them first."""
    untyped: Any = torch.UntypedStorage
    typed: Any = torch.storage.TypedStorage
    storages: dict[str, tuple[torch.UntypedStorage, int]] = {}

    def find_storage(persistent_id: Any) -> Any:
        _, kind, key, _, numel, view = persistent_id
        if view is not None:
            raise UnusualError
        if key not in storages:
            num_bytes = numel * kind.dtype.itemsize
            storages[key] = untyped(num_bytes, device="meta"), kind.dtype.itemsize
        return typed(wrap_storage=storages[key][0], dtype=kind.dtype, _internal=True)

    stream.seek(0)
    magic, protocol, system = (_unpickled(stream) for _ in range(3))
    is_native = system["little_endian"] == (sys.byteorder == "little")
    if (magic, protocol) != (MAGIC_NUMBER, PROTOCOL_VERSION) or not is_native:
        raise UnusualError
    content = _unpickled(stream, find_storage)
    starts: dict[int, int] = {}
    keys = _unpickled(stream)
    position = stream.tell()
    for key in keys:
        stored, itemsize = storages[key]
        stream.seek(position)
        if struct.unpack("<q", stream.read(8))[0] * itemsize != stored.nbytes():
            raise UnusualError
        starts[stored._cdata] = position + 8
        position += 8 + stored.nbytes()
    return content, starts


def _unpickled(stream: Any, find_storage: Callable[[Any], Any] | None = None) -> Any:
    """Load the next pickle, with torch's unpickler for weights."""
    unpickler: Any = Unpickler(stream)
    unpickler.persistent_load = find_storage
    return unpickler.load()
