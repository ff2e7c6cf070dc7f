"""The temporary folder of this process, and the removal of files that killed runs left on this machine.

    {TMPDIR}/graphmill-run-{user id}/{token}/       exists as long as its run
        semaphores                                  one line per semaphore: inode and path
        *.pem                                       keys of the run
    /dev/shm/sem.mp-*                               semaphores of the queues between Dask and its workers

Other programs name their semaphores alike. So a run records its own, and the next run removes a recorded
semaphore if its run has ended and the file is still the same.
"""

import atexit
import os
import re
import tempfile
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from graphmill.errors import StorageError
from graphmill.machine import private_folders

NAME = "graphmill-run"

_RECORD = "semaphores"
SHARED_MEMORY = Path("/dev/shm")
_SEMAPHORE_INODE = re.compile(r" (\d+) +/dev/shm/sem\.")
_SEMAPHORE = re.compile(r"/dev/shm/sem\.mp-\w+")

_token = uuid.uuid4().hex


def path() -> Path:
    """Return the folder of this process; at first make the folder, and remove those of killed processes.

    Raises:
        StorageError: the folder cannot be made, or another user has taken its name.
    """
    return _made(tempfile.gettempdir())


@cache
def _made(root: str) -> Path:
    folder = private_folders.use_folder(root, NAME, _token, before_removal=remove_recorded)
    atexit.register(_remove, root)
    return Path(folder)


def record_semaphores() -> None:
    """Record the semaphores that this process has made until now."""
    with suppress(StorageError, OSError):  # a missing record costs a few bytes of shared memory
        folder = path()
        temporary = folder / f".{_RECORD}"
        temporary.write_text("".join(f"{inode} {file}\n" for file, inode in _semaphores().items()))
        temporary.rename(folder / _RECORD)


def remove_recorded(folder: Path) -> None:
    """Remove the semaphores that the run of `folder` has recorded."""
    with suppress(FileNotFoundError):
        for line in (folder / _RECORD).read_text().splitlines():
            inode, _, name = line.partition(" ")
            if _SEMAPHORE.fullmatch(name):
                with suppress(FileNotFoundError):  # multiprocessing's own tracker was faster
                    found = Path(name).lstat()
                    if (str(found.st_ino), found.st_uid) == (inode, os.getuid()):
                        Path(name).unlink()


def _semaphores() -> dict[Path, int]:
    """Return the files of this process's semaphores, with their inodes."""
    # By inode: glibc makes a semaphore under another name, and its map keeps that name.
    inodes = set(map(int, _SEMAPHORE_INODE.findall(Path("/proc/self/maps").read_text())))
    found = {}
    for file in SHARED_MEMORY.glob("sem.mp-*"):
        with suppress(FileNotFoundError):  # another program's, which has just ended
            inode = file.stat().st_ino
            if inode in inodes:
                found[file] = inode
    return found


def _remove(root: str) -> None:
    private_folders.remove_folder(root, NAME, _token)
    with suppress(OSError):  # other runs have folders there
        Path(root, f"{NAME}-{os.getuid()}").rmdir()
