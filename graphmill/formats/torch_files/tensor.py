"""A `.pt` file of one tensor, read by rows and without torch.

`data.pkl` describes the tensor in a few opcodes. The opcodes are inspected and never executed. A file that
is not exactly one plain tensor, contiguous or expanded, is read by `torch_files.read`, which knows older and
rarer forms.
A process without torch starts 2 s sooner with 600 MB less.
"""

import math
import pickletools
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.torch_files.stored import (
    BFLOAT16,
    DTYPES,
    Archive,
    TensorRows,
    UnusualError,
    is_archive,
)

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
    """Tell whether the elements lie one after the other, and repeat themselves to a fair size at most."""
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
