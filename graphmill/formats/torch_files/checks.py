"""Checks of foreign files before torch.load(): the content must be no larger than the file.

torch.load() unpickles only weights. But a few bytes can make it allocate any memory: by packed records,
arrays created from a length, tensors that repeat one element, and values that contain each other many times.
"""

import math
import pickletools
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, strided

from graphmill.errors import FormatError
from graphmill.formats.torch_files.archive import Archive, is_archive

ANYTHING = "what torch.save() wrote, tensors and plain values only"

_NUM_PICKLES = 5  # of the older form
_MIN_VALUES = 1 << 16  # any file may hold so many, however small
_MAX_DEPTH = 100
_MADE_BY_LENGTH = re.compile(
    r"(builtins|__builtin__) bytearray|torch(\.\w+)* \w*Tensor|torch\._utils _rebuild_(sparse|nested)_tensor"
)


def check_file(stream: Any, size_bytes: int, where: str, expected: str = ANYTHING) -> Archive | None:
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
            found = str(argument).replace(" ", ".")
            raise FormatError(
                f"{where}: expected what torch.save() wrote, found the type {found}; "
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
            raise FormatError(
                f"{where}: expected a tree of values, found values that hold each other endlessly"
            )
        if isinstance(value, Tensor):
            _check_tensor(value, where, device)
            stored[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping | list | tuple | set):
            inner = value.values() if isinstance(value, Mapping) else value
            left += [(each, depth + 1) for each in inner]
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
