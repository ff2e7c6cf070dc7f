"""A `.pt` file of one tensor, read by rows and without torch.

`data.pkl` describes the tensor in a few opcodes. The opcodes are inspected and never executed. A file that
is not exactly one plain contiguous tensor is read by `torch_files.read`, which knows older and rarer forms.
A process without torch starts 2 s sooner with 600 MB less.
"""

import math
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.torch_files.archive import Archive, is_archive
from graphmill.formats.torch_files.rows import BFLOAT16, DTYPES, StoredRows, TensorRows, UnusualError

_MAX_PICKLE_BYTES = 1 << 16


@contextmanager
def open_tensor(uri: str) -> Iterator[TensorRows]:
    """The tensor in the file at `uri`, to be read within the block.

    Raises:
        NotFoundError: there is no such file.
        FormatError: the file is cut short, or holds anything but one tensor with rows.
    """
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


def _plain_rows(source: pa.NativeFile, uri: str) -> StoredRows:
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
    fits = (
        num_bytes == num_stored * itemsize
        and first_byte + num_bytes <= size_bytes
        and offset + math.prod(shape) <= num_stored
    )
    # Strides of axes with one element, or of a tensor without elements, have no meaning.
    contiguous = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    is_contiguous = all(s == c or n <= 1 for s, c, n in zip(stride, contiguous, shape, strict=True))
    if not (fits and (is_contiguous or not math.prod(shape))):
        raise UnusualError
    return StoredRows(source, uri, dtype, shape, first_byte + offset * itemsize)


def _plain_tensor(pickled: bytes) -> tuple[str, str, int, int, tuple[int, ...], tuple[int, ...]]:
    """dtype, key and length of the storage, offset, shape, stride, from the opcodes of one tensor."""
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
            kind.startswith("torch ")
            and kind[6:] in DTYPES
            and key.isalnum()
            and len(shape) == len(stride)
            and all(type(each) is int and each >= 0 for each in (*shape, *stride, offset, num_stored))
        ):
            return DTYPES[kind[6:]], key, num_stored, offset, shape, stride
    raise UnusualError


def _described(pickled: bytes) -> Any:
    """Describe the value of a pickle as nested tuples; calls nothing, and knows few opcodes."""
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
                stack.append(_popped(stack, len(stack) - int(opcode.name[-1])))
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
                raise UnusualError
    raise UnusualError


def _popped(stack: list[Any], start: int) -> tuple[Any, ...]:
    if not 0 <= start <= len(stack):
        raise UnusualError
    taken = tuple(stack[start:])
    del stack[start:]
    return taken
