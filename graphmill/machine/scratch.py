"""Tables on the local disk that all processes of this machine share: written once, mapped by all.

A table may be larger than the memory of one process. Processes share the work by locks: the lock of a process
that dies is released, and another process does its work again. See `run_folder` for the folder.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from graphmill.storage.filesystems import explained


def make_together(folder: str, names: Sequence[str], make: Callable[[str], None]) -> None:
    """Make the folder, and call `make(name)` for each name, once per machine; processes may share the names.

    `make` may be repeated after a kill. Returns when all names are done, by this process or another.
    """
    with explained("make a scratch folder", folder):
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for wait in (False, True):  # first the names that no process works on, then those of killed processes
        for name in names:
            done = Path(folder, f"{name}.done")
            if done.exists():
                continue
            with _locked(Path(folder, f"{name}.lock"), wait) as is_ours:
                if is_ours and not done.exists():
                    make(name)
                    with explained("write", str(done)):
                        done.touch()


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    with explained("lock", str(path)):
        stream = _opened(str(path))
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _opened(path: str) -> BinaryIO:
    return open(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600))


def reserve(path: str, num_bytes: int) -> None:
    """Make a file of zeros with all its blocks, so that a write to its map cannot hit a full disk."""
    with explained("reserve scratch space", path), Path(path).open("wb") as stream:
        if num_bytes:
            os.posix_fallocate(stream.fileno(), 0, num_bytes)


def map_array(path: str, dtype: npt.DTypeLike, *, writable: bool = False) -> npt.NDArray[Any]:
    """Map the whole file as an array [N], which all processes that map it share."""
    with explained("map", path):
        if not Path(path).stat().st_size:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        return np.memmap(path, dtype, mode="r+" if writable else "r")


def write_at(path: str, first_byte: int, rows: npt.NDArray[Any]) -> None:
    """Write the bytes of the array [N] into a file, starting at `first_byte`."""
    with explained("write a scratch file", path), _opened(path) as stream:
        stream.seek(first_byte)
        stream.write(np.ascontiguousarray(rows).view(np.uint8).data)


def allot(path: str, amounts: Sequence[int]) -> list[int]:
    """Add `amounts` to the counters of the file, which all processes share; return the counters before."""
    with explained("count in a scratch file", path), _opened(path) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        counters = np.frombuffer(stream.read() or bytes(8 * len(amounts)), np.int64)
        stream.seek(0)
        stream.write((counters + np.array(amounts, np.int64)).tobytes())
    return [int(counter) for counter in counters]
