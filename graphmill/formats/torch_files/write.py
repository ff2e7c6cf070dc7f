"""Writer of `.pt` files in the form before torch 1.6: every torch reads them, and they can be streamed.

The pickles come first, with the sizes of all tensors; the elements follow, batch by batch. Equal
content has equal bytes. The package's docstring shows the form.
"""

import io
import math
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.torch_files.stored import DTYPES


@dataclass(frozen=True)
class NewTorchTensor:
    """A float32 tensor for writing; its rows [n, ...] come in batches."""

    shape: tuple[int, ...]
    batches: Iterable[npt.NDArray[Any]]


def save(uri: str, content: Any) -> None:
    """Write `content`, nested plain values, tensors and `NewTorchTensor`s, in the form before torch 1.6.

    The memory is that of one batch. Equal content has equal bytes.
    """
    with storage.atomic_output(uri) as stream:
        for head in (MAGIC_NUMBER, PROTOCOL_VERSION, _SYSTEM):
            stream.write(pickle.dumps(head, protocol=2))
        pickled = io.BytesIO()
        pickler = _Pickler(pickled)
        pickler.dump(_interned(content))
        stream.write(pickled.getvalue())
        stream.write(pickle.dumps(list(pickler.storages), protocol=2))
        for stored in pickler.storages.values():
            stream.write(struct.pack("<q", stored.numel))
            num_written = 0
            for batch in stored.batches():
                stream.write(np.ascontiguousarray(batch).reshape(-1).view(np.uint8))
                num_written += batch.size
            if num_written != stored.numel:
                raise FormatError(f"{uri}: expected {stored.numel} elements, found {num_written}")


_SYSTEM = {
    "protocol_version": PROTOCOL_VERSION,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


class _Storage:
    def __init__(self, value: NewTorchTensor | Tensor) -> None:
        self._value = value
        self.dtype = torch.float32 if isinstance(value, NewTorchTensor) else value.dtype
        self.numel = math.prod(value.shape)

    def batches(self) -> Iterable[npt.NDArray[Any]]:
        if isinstance(self._value, NewTorchTensor):
            return self._value.batches
        content = self._value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return [content.view(f"V{self.dtype.itemsize}")]


def _interned(value: Any) -> Any:
    """`value` with one object for equal strings: a pickle refers to an object that it has written before."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, Mapping):
        return {_interned(key): _interned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_interned(inner) for inner in value])
    return value


class _Pickler(pickle.Pickler):
    """Numbers the storages in the order of the content."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=2)
        self.storages: dict[str, _Storage] = {}

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, NewTorchTensor | Tensor):
            return NotImplemented
        shape = tuple(value.shape)
        stride = torch.empty(shape, device="meta").stride()
        return torch._utils._rebuild_tensor_v2, (_Storage(value), 0, shape, stride, False, OrderedDict())

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, _Storage):
            return None
        key = str(len(self.storages))
        self.storages[key] = value
        return "storage", getattr(torch, _STORAGES[value.dtype]), key, "cpu", value.numel, None


_STORAGES = {getattr(torch, dtype): storage for storage, dtype in DTYPES.items()}
