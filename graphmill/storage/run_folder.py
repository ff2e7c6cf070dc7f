"""Folders that only this user may enter, and their removal when no process uses them; the temporary folder of
this process is one of them.

    {root}/{name}-{user id}/                        of this user alone
        {token}/                                    of one job; each process that uses the folder locks .alive
    {TMPDIR}/graphmill-run-{user id}/{token}/       exists as long as its run
        *                                           keys, files on their way to HDFS, and other passing files

The lock of a killed process is released, so the next job removes folders that nobody uses.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from graphmill.storage.filesystems import explained

NAME = "graphmill-run"

_token = uuid.uuid4().hex
_PRIVATE = 0o700
_ALIVE = ".alive"

_locks: dict[str, int] = {}  # folders that this process uses, with the descriptors of their locks


def make_private(path: Path, *, forbidden_mode: int = 0o077) -> None:
    """Make a folder for this user alone, unless it exists."""
    with suppress(FileExistsError):  # exist_ok raises this where another process removes the folder meanwhile
        path.mkdir(mode=_PRIVATE, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden_mode:
        raise PermissionError(f"{path}: expected a folder of this user alone, found another's; delete it")


def use_folder(root: str, name: str, token: str) -> str:
    """Make the folder of a job, keep it while this process lives, and return its path.

    Folders of jobs that have ended are removed.
    """
    path = _job_path(root, name, token)
    if str(path) in _locks:
        return str(path)
    with explained("make a private folder", str(path)):
        _locks[str(path)] = _lock(path)
        for sibling in path.parent.iterdir():
            if sibling != path:
                _remove_unused(sibling)
    return str(path)


def remove_folder(root: str, name: str, token: str) -> None:
    """Delete a job's folder; processes that have mapped a file of it keep the map until they end."""
    path = _job_path(root, name, token)
    descriptor = _locks.pop(str(path), None)
    shutil.rmtree(path, ignore_errors=True)
    if descriptor is not None:
        os.close(descriptor)


def _job_path(root: str, name: str, token: str) -> Path:
    return Path(root, f"{name}-{os.getuid()}", token)


def _lock(path: Path) -> int:
    while True:
        with suppress(FileNotFoundError):  # another process has just removed the folder
            make_private(path.parent)
            with suppress(FileExistsError):
                path.mkdir(mode=_PRIVATE)
            descriptor = os.open(path / _ALIVE, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)


def _remove_unused(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT, 0o600)  # a kill may come before a lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def path() -> Path:
    """Return the folder of this process; at first make the folder, and remove those of killed processes."""
    return _made(tempfile.gettempdir())


@contextmanager
def temporary() -> Iterator[str]:
    """A folder for the block, whose end deletes it; if this process is killed, a later one does."""
    with tempfile.TemporaryDirectory(dir=path(), ignore_cleanup_errors=True) as folder:
        yield folder


@cache
def _made(root: str) -> Path:
    folder = use_folder(root, NAME, _token)
    atexit.register(_remove, root)
    return Path(folder)


def _remove(root: str) -> None:
    remove_folder(root, NAME, _token)
    with suppress(OSError):  # other runs have folders there
        Path(root, f"{NAME}-{os.getuid()}").rmdir()
