"""The temporary folder of this process, and the removal of files that killed runs left on this machine.

{TMPDIR}/graphmill-run-{user id}/{token}/       exists as long as its run
    *                                           keys, files on their way to HDFS, and other passing files
"""

import atexit
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from graphmill.storage import private_folders

NAME = "graphmill-run"

_token = uuid.uuid4().hex


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
    folder = private_folders.use_folder(root, NAME, _token)
    atexit.register(_remove, root)
    return Path(folder)


def _remove(root: str) -> None:
    private_folders.remove_folder(root, NAME, _token)
    with suppress(OSError):  # other runs have folders there
        Path(root, f"{NAME}-{os.getuid()}").rmdir()
