"""A temporary folder for keys, which a run that is killed does not leave for ever."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SETTLED_S = 60  # until when a folder may not be locked yet


@contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """A folder for this user alone, gone after the block; those that killed runs have left go first.

    Nobody else makes folders with this prefix: what is not locked is removed.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another run's, or gone
            status = old.lstat()
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _SETTLED_S:
                with _locked(old):
                    shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, _locked(Path(folder)):
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process.

    Raises:
        OSError: another process has it, or this is no folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
