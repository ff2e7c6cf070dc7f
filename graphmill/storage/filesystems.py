"""File systems by URI, and their errors.

An error of a file system becomes a `StorageError`, or a `NotFoundError` for a path that does not exist, with
the URI in the message, and the permission that is missing on a local file or folder.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import AccessError, DiskFullError, NotFoundError, PathError, StorageError
from graphmill.storage import hadoop_conf, hdfs, hdfs_writer
from graphmill.storage.uri import check_has_no_nul, check_user_info, is_local, local_path, scheme, split

LOCAL = pafs.LocalFileSystem(use_mmap=False)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# For good:
_OF_PATHS = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)
_OF_HADOOP = (  # what Java's classes of errors mean
    ("Permission denied(?: by sticky bit)?: user=|SnapshotAccessControlException", AccessError),
    ("QuotaExceededException|QuotaByStorageTypeExceededException", DiskFullError),
    ("InvalidPathException|ParentNotDirectoryException|PathComponentTooLongException", PathError),
)
_MAX_NAME_BYTES = 255  # of local disks, and of HDFS by default

_CHANGES = ("create", "delete", "make", "rename", "write", "sync", "set")


def missing(action: str, uri: str) -> str:
    """Name the permission and the file or folder that an action on a local path lacks."""
    path = Path(local_path(uri) or "/")
    above = [*reversed(path.parents)]
    closed = [folder for folder in above if folder.is_dir() and not _may(folder, os.X_OK)][:1]
    if closed:
        return f"{uri}: cannot {action}: no permission to enter the folder {_described(closed[0])}"
    folder = next(folder for folder in reversed(above) if folder.is_dir())
    if not _may(folder, os.W_OK) and action.startswith(_CHANGES):
        return f"{folder}: no permission to write into the folder {_described(folder)}"
    return f"{uri}: cannot {action}: no permission to do that with {_described(path)}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _described(path: Path) -> str:
    """A path with its owner and mode, as `ls -l` shows them."""
    with suppress(OSError, KeyError):
        return f"{path} ({stat.filemode(path.stat().st_mode)}, of {path.owner()})"
    return str(path)


@contextmanager
def explained(action: str, uri: str) -> Iterator[None]:
    """Turn an error of a file system into a `StorageError` with the action and the URI."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{uri}: cannot {action}: there is no such file or folder") from error
    except EOFError as error:
        raise StorageError(f"{uri}: cannot {action}: it ends too early: {error}") from error
    except (OSError, RuntimeError) as error:
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
        of_hdfs = type(error) is RuntimeError and hdfs_writer.OWN_ERROR.search(reason)
        if isinstance(error, RuntimeError) and not of_hdfs:
            raise
        if number in (errno.EACCES, errno.EPERM):
            raise AccessError(missing(action, uri)) from error
        reason = hdfs.reason_of(reason)
        kind = next((kind for words, kind in _OF_HADOOP if re.search(words, reason)), StorageError)
        kind = DiskFullError if number in _NO_ROOM else PathError if number in _OF_PATHS else kind
        raise kind(f"{uri}: cannot {action}: {reason}") from error


def filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The pyarrow file system of `uri`, and the path in it."""
    _check_path(uri)
    path = local_path(uri)
    if path is not None:
        return LOCAL, path
    check_user_info(uri)
    root, path_below = split(uri)
    with explained("connect", uri):
        file_system, bucket = _remote(root, os.environ.get(hadoop_conf.VARIABLE), hdfs.chosen_driver())
        return file_system, bucket + path_below or "/"


def _check_path(uri: str) -> None:
    check_has_no_nul(uri)
    try:
        (os.fsencode(uri) if is_local(uri) else uri.encode()).decode()
    except UnicodeError as error:
        raise PathError(
            f"{uri!a}: expected a path in UTF-8, and a locale that has it: set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        ) from error
    if len(uri) > _MAX_NAME_BYTES and scheme(uri) in ("file", "hdfs"):
        longest = max(uri.split("/"), key=len)
        if (size := len(longest.encode(errors="replace"))) > _MAX_NAME_BYTES:
            raise PathError(
                f"{uri}: expected names of at most {_MAX_NAME_BYTES} bytes between its slashes, found "
                f"{size}; choose a shorter one"
            )


@lru_cache(maxsize=16)
def _remote(root: str, _hadoop_conf_dir: str | None, _hdfs_driver: str) -> tuple[pafs.FileSystem, str]:
    """The file system, and the start of its paths: the path of s3://bucket/x is bucket/x."""
    if scheme(root) == "hdfs":
        return hdfs.connect(root), ""
    try:
        file_system, path = pafs.FileSystem.from_uri(root + "/")
        return file_system, path.rstrip("/")
    except pa.ArrowInvalid as error:
        raise PathError(f"{root}: no file system is known for the scheme {scheme(root)!r}") from error
