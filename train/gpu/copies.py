"""Copies between host and device, on streams beside the stream of the steps.

    steps          the default stream
    in             partitions to the device; waits until a slot's last partition has left
    out            partitions to the host; waits for the steps that trained them
    one a thread   edges and partitions from files, and partitions for files (`beside_steps`)

Without a GPU, a call returns when the copy is done.
"""

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphmill.formats.edge_buckets import NewArray
from train.edges.batches import EdgeTensors
from train.step.step import Table

_of_thread = threading.local()
_ALIGNED_BYTES = 64
_ALIGNED = 64  # numbers; the kernels load 16 bytes at a time where an address allows


class Slot:
    """Room on the device for one partition, of any shape."""

    def __init__(self, num_floats: int, device: torch.device) -> None:
        self.numbers = torch.empty(num_floats, device=device)
        self.left: Any = None  # torch.cuda.Event after the copy of the last partition to the host

    def table(self, like: Table) -> Table:
        """Make a table of the same shape in this slot; sums are last, so that addresses stay the same."""
        rows, sums = like.embeddings_ND, like.sums
        start = self.numbers.numel() // _ALIGNED * _ALIGNED - aligned(sums.numel())
        return Table(
            self.numbers[: rows.numel()].view(rows.shape),
            self.numbers[start : start + sums.numel()].view(sums.shape),
        )


def aligned(num_floats: int) -> int:
    """Round up to the next place where a tensor may start."""
    return -(-num_floats // _ALIGNED) * _ALIGNED


def num_floats_of(table: Table) -> int:
    """Compute the size of a slot for the table."""
    return aligned(table.embeddings_ND.numel()) + aligned(table.sums.numel())


class Copies:
    """Moves partitions between their pinned tables on the host and slots on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._in = torch.cuda.Stream(device) if self.is_cuda else None  # type: ignore[no-untyped-call]
        self._out = torch.cuda.Stream(device) if self.is_cuda else None  # type: ignore[no-untyped-call]

    def steps_done(self) -> None:
        """Make future calls of `take` wait for the steps so far."""
        if self._out is not None:
            self._out.wait_stream(torch.cuda.current_stream(self.device))

    def await_arrivals(self) -> None:
        """Make future steps wait for the partitions brought so far."""
        if self._in is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._in)

    def bring(self, host: Table, slot: Slot, after: Iterable[Any]) -> Table:
        """Copy the table to the slot after the events `after`, which `take` returned."""
        here = slot.table(host)
        if self._in is not None:
            for event in (slot.left, *after):
                if event is not None:
                    self._in.wait_event(event)
        self._copy(host, here, self._in)
        return here

    def take(self, here: Table, host: Table) -> Any:
        """Copy a table back to the host; return the event after the copy."""
        self._copy(here, host, self._out)
        return self.passed()

    def passed(self) -> Any:
        """Record an event after all steps and all copies to the host so far."""
        return None if self._out is None else self._out.record_event()

    def wait(self) -> None:
        """Wait until all copies are done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def pinned(self, table: Table) -> Table:
        """Copy a table to pinned memory of the host, for copies beside steps."""
        if not self.is_cuda:
            return table
        slot = Slot(0, table.sums.device)
        slot.numbers = pinned(num_floats_of(table) * torch.float32.itemsize).view(torch.float32)
        own = slot.table(table)
        own.embeddings_ND.copy_(table.embeddings_ND)
        own.sums.copy_(table.sums)
        return own

    def _copy(self, source: Table, target: Table, stream: Any) -> None:
        with torch.cuda.stream(stream):  # of None does nothing
            target.embeddings_ND.copy_(source.embeddings_ND, non_blocking=True)
            target.sums.copy_(source.sums, non_blocking=True)


@contextmanager
def beside_steps(device: torch.device) -> Iterator[None]:
    """Run the block's copies on this thread's own stream, and wait for them, but not for the steps.

    What they read must be complete: a bucket ends when the host has seen its figures.
    """
    if device.type != "cuda":
        yield
        return
    if not hasattr(_of_thread, "stream"):  # one for all: freed memory returns to the stream that asked for it
        _of_thread.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(_of_thread.stream):
        yield
    _of_thread.stream.synchronize()


def on_device(table: Table, device: torch.device) -> Table:
    """Copy a table to a device or to the host, beside the steps; the table itself if it is there."""
    here = table.embeddings_ND.device
    with beside_steps(here if device.type == "cpu" else device):
        return Table(table.embeddings_ND.to(device), table.sums.to(device))


def read_beside_steps(device: torch.device, read: Callable[[], EdgeTensors]) -> EdgeTensors:
    """Call `read`, which copies edges to the device, and wait for the copies but not for the steps."""
    with beside_steps(device):
        edges = read()
    if device.type != "cuda":
        return edges
    held = [*vars(edges).values(), *(part for bag in edges.bags.values() for part in vars(bag).values())]
    for tensor in held:
        if isinstance(tensor, Tensor):  # its memory returns to this stream after the last step that reads it
            tensor.record_stream(torch.cuda.default_stream(device))
    return edges


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
