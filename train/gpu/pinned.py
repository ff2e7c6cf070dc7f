"""Pinned memory of the host, which a GPU copies from and to beside its steps.

torch's own pinned memory takes the next power of two bytes. Ordinary pages that CUDA has registered take what
is asked for, in whole pages.
"""

import math
import mmap
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphmill.formats.edge_buckets import NewArray

_ALIGNED_BYTES = 64


def pinned(num_bytes: int) -> Tensor:
    """Allocate pinned memory: uint8 [num_bytes]. It is given back with the last tensor that views it."""
    pages = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), len(memory), 0))
    weakref.finalize(pages, cudart.cudaHostUnregister, memory.data_ptr()).atexit = False
    return memory[:num_bytes]


class Staging:
    """One pinned area for the columns of a bucket, on their way to a GPU."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._num_bytes, self._device = num_bytes, device
        self._area: Tensor | None = None
        self._lock = threading.Lock()

    @contextmanager
    def arrays(self) -> Iterator[NewArray]:
        """A function that makes arrays, which are copied to the device before the block ends.

        They lie in the area while it has room. Without a GPU they are ordinary arrays.
        """
        if self._device.type != "cuda":
            yield np.empty
            return
        with self._lock:
            if self._area is None:
                self._area = pinned(self._num_bytes)
            left = self._area.numpy()

            def new(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
                nonlocal left
                num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
                if num_bytes > len(left):
                    return np.empty(shape, dtype)
                array = left[:num_bytes].view(dtype).reshape(shape)
                left = left[-(-num_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES :]
                return array

            yield new
            torch.cuda.current_stream(self._device).synchronize()
