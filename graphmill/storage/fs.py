"""The one place that opens files, wherever they are.

Every function takes a URI (see `uri`). What the file systems raise comes out as `StorageError`, or as
`NotFoundError` where a path does not exist, with the URI in the message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import NotFoundError, StorageError
from graphmill.storage import hdfs
from graphmill.storage.uri import join, local_path, name, scheme


class FileStatus(NamedTuple):
    """What a listing tells of one entry."""

    uri: str
    is_dir: bool
    size_bytes: int
    mtime_ns: int


@contextmanager
def explained(action: str, uri: str) -> Iterator[None]:
    """Turn what a file system raises inside into a `StorageError` that says what was tried and where."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{uri}: cannot {action}: there is no such file or folder") from error
    except OSError as error:
        raise StorageError(f"{uri}: cannot {action}: {error.strerror or error}") from error
    except RuntimeError as error:
        if type(error) is not RuntimeError or "RPCError" not in str(error):
            raise
        # What a namenode refuses, hdfs-native raises as RuntimeError with the server's whole stack trace.
        reason = str(error).partition(r"\n\tat ")[0].partition("\n")[0]
        raise StorageError(f"{uri}: cannot {action}: {reason}") from error


def filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The pyarrow file system that holds `uri`, and the path in it.

    Raises:
        StorageError: nothing is known to open such a URI, or its service does not answer.
    """
    path = local_path(uri)
    if path is not None:
        return _LOCAL, path
    parts = urlsplit(uri)
    with explained("connect", uri):
        return _remote(f"{parts.scheme}://{parts.netloc}"), parts.path or "/"


_LOCAL = pafs.LocalFileSystem(use_mmap=False)


@lru_cache(maxsize=16)
def _remote(root: str) -> pafs.FileSystem:
    if scheme(root) == "hdfs":
        return hdfs.connect(root)
    try:
        return pafs.FileSystem.from_uri(root + "/")[0]
    except pa.ArrowInvalid as error:
        raise StorageError(f"{root}: no file system is known for the scheme {scheme(root)!r}") from error


def open_input(uri: str) -> pa.NativeFile:
    """Open for reading with random access."""
    file_system, path = filesystem(uri)
    with explained("open", uri):
        return file_system.open_input_file(path)


def open_output(uri: str, *, replication: int | None = None) -> pa.NativeFile:
    """Open for writing, replacing; parents are made. Not atomic: see `commit.atomic_output`.

    `replication` is how many copies HDFS keeps (None: its default); other storage does not know it.
    """
    file_system, path = filesystem(uri)
    with explained("create", uri):
        file_system.create_dir(path.rpartition("/")[0] or "/", recursive=True)
        metadata = {hdfs.REPLICATION: str(replication)} if replication else None
        return file_system.open_output_stream(path, metadata=metadata)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with open_input(uri) as stream, explained("read", uri):
        content: bytes = stream.readall()
        return content


def read_text(uri: str) -> str:
    """The whole file, as UTF-8.

    Raises:
        StorageError: it is not UTF-8.
    """
    try:
        return read_bytes(uri).decode()
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{uri}: expected UTF-8 text, found byte {error.object[error.start]:#x} at offset {error.start}"
        ) from error


def status(uri: str) -> FileStatus | None:
    """What is at `uri`, or None."""
    file_system, path = filesystem(uri)
    with explained("look up", uri):
        found = file_system.get_file_info(path)
    return None if found.type == pafs.FileType.NotFound else _status(found, uri)


def exists(uri: str) -> bool:
    """Whether there is a file or folder at `uri`."""
    return status(uri) is not None


def is_dir(uri: str) -> bool:
    """Whether `uri` is a folder."""
    found = status(uri)
    return found is not None and found.is_dir


def list_dir(uri: str, recursive: bool = False) -> list[FileStatus]:
    """The entries of the folder, sorted by URI; a missing folder has none.

    Hidden entries (`.name`) are left out: they are temporary files of ours or of others.
    """
    file_system, path = filesystem(uri)
    with explained("list", uri):
        selector = pafs.FileSelector(path, allow_not_found=True, recursive=recursive)
        found = file_system.get_file_info(selector)
    root = path.rstrip("/") + "/"
    entries = [_status(each, join(uri, each.path.removeprefix(root))) for each in found]
    visible = [each for each in entries if "/." not in each.uri[len(uri.rstrip("/")) :]]
    return sorted(visible, key=lambda each: each.uri)


def make_dir(uri: str) -> None:
    """Make the folder and its parents; one that exists is fine."""
    file_system, path = filesystem(uri)
    with explained("make the folder", uri):
        file_system.create_dir(path, recursive=True)


def move(source: str, target: str) -> None:
    """Rename within one file system; an existing file at `target` is replaced atomically."""
    file_system, source_path = filesystem(source)
    with explained(f"rename to {target}", source):
        file_system.move(source_path, filesystem(target)[1])


def delete(uri: str) -> None:
    """Delete the file, or the folder with all that is in it; what is not there is fine."""
    file_system, path = filesystem(uri)
    found = status(uri)
    if found is None:
        return
    with explained("delete", uri):
        (file_system.delete_dir if found.is_dir else file_system.delete_file)(path)


def _status(found: pafs.FileInfo, uri: str) -> FileStatus:
    is_folder = found.type == pafs.FileType.Directory
    return FileStatus(uri, is_folder, 0 if is_folder else found.size or 0, found.mtime_ns or 0)


def list_hidden(uri: str) -> list[str]:
    """URIs of the folder's own hidden entries (`.name`)."""
    file_system, path = filesystem(uri)
    with explained("list", uri):
        found = file_system.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    return sorted(join(uri, name(each.path)) for each in found if name(each.path).startswith("."))
