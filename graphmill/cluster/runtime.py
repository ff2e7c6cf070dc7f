"""The process that trains: its threads, an allocator that keeps freed memory."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphmill.cluster.settings import ENVIRONMENT, HUGE_PAGES, num_cores

_M_TRIM_THRESHOLD = -1  # of glibc's mallopt
_M_MMAP_THRESHOLD = -3


@contextmanager
def cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Let torch use `num_threads`, or all cores of this process: Dask's workers start with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or num_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let glibc keep the buffers that a step frees: otherwise every step faults all its pages in again.

    Also lets torch ask for huge pages, if it has no tensor yet. Our clusters start workers with these
    settings (`cluster.ENVIRONMENT`). On other clusters, steps become two to ten times as fast.
    """
    os.environ.setdefault(HUGE_PAGES, ENVIRONMENT[HUGE_PAGES])
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_MMAP_THRESHOLD, 256 << 20) or mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most before 2.35
