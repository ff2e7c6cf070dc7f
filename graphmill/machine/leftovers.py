"""Removes what multiprocessing has made on this machine for runs that were killed.

    {TMPDIR}/graphmill-run-{user id}/{token}/       locked by its run for as long as that lives
        made                                        a line a thing: inode and path
        *.pem                                       keys of the run
    /dev/shm/sem.mp-*                               semaphores, of the queues between Dask and its workers
    {TMPDIR}/pymp-*/                                the socket of the server that workers are forked from

Programs of others call theirs the same. So a run notes its own, and only what it has noted is removed, once
its process is gone and if it is still the same file.
"""

import atexit
import multiprocessing.util
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from graphmill.errors import StorageError
from graphmill.machine import forkserver, scratch

_NAME = "graphmill-run"
_MADE = "made"
_SHM = Path("/dev/shm")
_SEMAPHORE_INODE = re.compile(r" (\d+) +/dev/shm/sem\.")
_OURS = re.compile(r"/dev/shm/sem\.mp-\w+|.*/pymp-\w+")

_token = uuid.uuid4().hex


def folder() -> Path:
    """The folder of this process, for this user alone; those of killed processes are removed first.

    Raises:
        StorageError: it cannot be made, or its name is taken by another user.
    """
    root = tempfile.gettempdir()
    is_first = not scratch.is_used(root, _NAME, _token)
    path = scratch.use_folder(root, _NAME, _token, before_removal=_remove_noted)
    if is_first:
        atexit.register(_forget, root)
    return Path(path)


def note() -> None:
    """Note what this process has made until now, and remove what killed ones have left."""
    with suppress(StorageError, OSError):  # untidy, and no more than that
        own = folder()
        temporary = own / f".{_MADE}"
        temporary.write_text("".join(f"{_inode(path)} {path}\n" for path in _made()))
        temporary.rename(own / _MADE)


def _made() -> list[Path]:
    maps = Path("/proc/self/maps")
    # By inode: glibc makes a semaphore under another name, by which its map goes.
    inodes = set(_SEMAPHORE_INODE.findall(maps.read_text())) if maps.exists() else set()
    semaphores = [path for path in _SHM.glob("sem.mp-*") if inodes and str(_inode(path)) in inodes]
    folders = [Path(multiprocessing.util.get_temp_dir())] if forkserver.is_started() else []
    return [*semaphores, *folders]


def _inode(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_ino
    return 0


def _remove_noted(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for line in (folder / _MADE).read_text().splitlines():
            inode, _, path = line.partition(" ")
            if _OURS.fullmatch(path) and inode.isdigit():
                _remove(Path(path), int(inode))


def _remove(path: Path, inode: int) -> None:
    with suppress(FileNotFoundError):  # multiprocessing's own tracker was faster
        found = path.lstat()
        if (found.st_ino, found.st_uid) == (inode, os.getuid()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _forget(root: str) -> None:
    scratch.remove_folder(root, _NAME, _token)
    with suppress(OSError):  # of other runs there are some
        Path(root, f"{_NAME}-{os.getuid()}").rmdir()
