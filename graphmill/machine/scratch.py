"""Folders on this machine's own disk, and tables in them that all processes of the machine share.

    {root}/{name}-{user id}/        this user's alone
        {token}/                    one job's; .alive is locked by every process that uses it
            ...                     tables, written once, mapped by all

For what is too large for the memory of each process. Work is shared out by locks: a process that dies lets
go of its lock, and another one makes what it was making. What killed jobs left, the next one removes.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.errors import StorageError
from graphmill.storage.fs import explained

_OURS_ALONE = 0o700
_ALIVE = ".alive"

_held: dict[str, int] = {}  # folders that this process uses, with their locks


def _keep_nothing(folder: Path) -> None:
    """Before a folder that was abandoned is removed: nothing."""


def is_used(root: str, name: str, token: str) -> bool:
    """Whether this process uses that folder already."""
    return str(Path(root) / f"{name}-{os.getuid()}" / token) in _held


def use_folder(
    root: str, name: str, token: str, *, before_removal: Callable[[Path], None] = _keep_nothing
) -> str:
    """The path of a job's folder on this machine, made if need be; kept for as long as this process lives.

    Those of jobs that are gone are removed, each after `before_removal` has seen it.

    Raises:
        StorageError: it cannot be made, or the folder above is somebody else's.
    """
    above = Path(root) / f"{name}-{os.getuid()}"
    path = str(above / token)
    if path in _held:
        return path
    with explained("make a scratch folder", path):
        above.mkdir(mode=_OURS_ALONE, parents=True, exist_ok=True)
        found = above.lstat()
        if above.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise StorageError(f"{above}: expected a folder of this user alone, found another's; delete it")
        _held[path] = _hold(path)
        for sibling in above.iterdir():
            if str(sibling) != path:
                _remove_abandoned(sibling, before_removal)
    return path


def remove_folder(root: str, name: str, token: str) -> None:
    """Delete a job's folder; processes that have mapped a table in it keep that until they end."""
    path = str(Path(root) / f"{name}-{os.getuid()}" / token)
    descriptor = _held.pop(path, None)
    shutil.rmtree(path, ignore_errors=True)
    if descriptor is not None:
        os.close(descriptor)


def _hold(path: str) -> int:
    while True:
        os.makedirs(path, mode=_OURS_ALONE, exist_ok=True)  # noqa: PTH103 (as the path is a text)
        with suppress(FileNotFoundError):  # removed in between
            descriptor = os.open(os.path.join(path, _ALIVE), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)


def _remove_abandoned(folder: Path, before_removal: Callable[[Path], None]) -> None:
    with suppress(OSError):
        descriptor = os.open(folder / _ALIVE, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before_removal(folder)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def make_together(folder: str, names: Sequence[str], make: Callable[[str], None]) -> None:
    """See that `make(name)` has been done for each name, once on this machine; whoever calls this helps.

    `make` may be repeated after a kill. Returns when all are done, whoever did them.
    """
    for wait in (False, True):  # first what nobody is at, then what others were at, and may have left
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def reserve(path: str, num_bytes: int) -> None:
    """Make a file of zeros that has its blocks: writing into a map of it cannot find the disk full.

    Raises:
        StorageError: the disk is full.
    """
    with explained("reserve scratch space", path), Path(path).open("wb") as stream:
        if num_bytes:
            os.posix_fallocate(stream.fileno(), 0, num_bytes)


def map_array(path: str, dtype: npt.DTypeLike, *, writable: bool = False) -> npt.NDArray[Any]:
    """The whole file as an array [N], shared with all processes that map it."""
    with explained("map", path):
        if not Path(path).stat().st_size:  # which cannot be mapped
            return np.empty(0, dtype)
        return np.memmap(path, dtype, mode="r+" if writable else "r")


def write_at(path: str, first_byte: int, rows: npt.NDArray[Any]) -> None:
    """Write the bytes of the array [N] into a file, from `first_byte` on."""
    with explained("write a scratch file", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            left = np.ascontiguousarray(rows).view(np.uint8).data
            while left:
                written = os.pwrite(descriptor, left, first_byte)
                left, first_byte = left[written:], first_byte + written
        finally:
            os.close(descriptor)


def allot(path: str, amounts: Sequence[int]) -> list[int]:
    """Take so much of each of several things; how much of each had been taken before, by any process."""
    with explained("count in a scratch file", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = 8 * len(amounts)
            taken = np.frombuffer(os.pread(descriptor, size, 0) or bytes(size), np.int64)
            os.pwrite(descriptor, (taken + np.array(amounts, np.int64)).tobytes(), 0)
        finally:
            os.close(descriptor)
    return [int(each) for each in taken]


def make_folder(path: str) -> None:
    """Make a folder within one that is used."""
    with explained("make a scratch folder", path):
        Path(path).mkdir(mode=_OURS_ALONE, parents=True, exist_ok=True)
