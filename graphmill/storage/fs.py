"""Files: the only module that opens them.

Every function takes a URI (see `uri`); errors are those of `filesystems`.
"""

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import FormatError, NotFoundError, PathError
from graphmill.storage import hdfs
from graphmill.storage.filesystems import LOCAL, explained, filesystem
from graphmill.storage.uri import below, is_local, local_path, name, scheme

_COPY_BYTES = 8 << 20
_MAX_LINKS = 8
MAX_TEXT_BYTES = 256 << 20  # of a text or a JSON file: a sparse file of any size takes no room on a disk
_WITHOUT_FOLDERS = ("s3", "gs", "gcs")
_JSON_NAMES: dict[type, str] = {dict: "object", list: "list"}


class FileStatus(NamedTuple):
    """Entry of a listing."""

    uri: str
    is_dir: bool
    size_bytes: int
    mtime_ns: int


def open_input(uri: str) -> pa.NativeFile:
    """Open for reading with random access."""
    file_system, path = filesystem(uri)
    with explained("open", uri):
        if is_local(uri):
            _check_regular(path, uri)
        return file_system.open_input_file(path)


def _check_regular(path: str, uri: str) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 (a Path takes four times as long)
    except NotADirectoryError as error:  # below a file there is none, as HDFS says
        raise FileNotFoundError(path) from error
    if stat.S_ISDIR(mode):
        raise PathError(f"{uri}: expected a file, found a folder")
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _NO_FILES if is_kind(mode)), "something else")
        raise FormatError(
            f"{uri}: expected a file, found {kind}, which is not read; write its content to a file"
        )


_NO_FILES = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_output(uri: str, *, replication: int | None = None, make_parents: bool = True) -> pa.NativeFile:
    """Open a new file for writing, in folders that are made if wanted. Not atomic: see `atomic_output`.

    `replication` is the number of copies on HDFS (None: its default); other storage ignores it.
    """
    file_system, path = filesystem(uri)
    metadata = {hdfs.REPLICATION: str(replication)} if replication else {}
    with explained("create", uri):
        if make_parents and not (replicates(uri) and isinstance(file_system, pafs.PyFileSystem)):
            file_system.create_dir(path.rpartition("/")[0] or "/", recursive=True)
        elif make_parents:
            metadata[hdfs.PARENTS] = "make"
        return file_system.open_output_stream(path, compression=None, metadata=metadata or None)


def replicates(uri: str) -> bool:
    """Tell whether the storage keeps as many copies of a file as `open_output` is told: HDFS does."""
    return scheme(uri) == "hdfs"


def replicate(uri: str) -> None:
    """Give a file that was written with fewer copies the default number, in the background."""
    file_system, path = filesystem(uri)
    if replicates(uri) and isinstance(file_system, pafs.PyFileSystem):  # libhdfs begins with that number
        with explained("set the number of copies", uri):
            hdfs.replicate(file_system, path)


def read_bytes(uri: str, max_bytes: int = sys.maxsize) -> bytes:
    """The whole file."""
    with open_input(uri) as stream, explained("read", uri):
        if (size := stream.size()) > max_bytes:
            raise FormatError(f"{uri}: expected at most {max_bytes:,} bytes of text, found {size:,}")
        content: bytes = stream.readall()
        return content


def read_if_there(uri: str) -> bytes | None:
    """The whole file, a text; None if there is none, or none any more."""
    with suppress(NotFoundError):
        return read_bytes(uri, MAX_TEXT_BYTES)
    return None


def read_text(uri: str) -> str:
    """The whole file, as UTF-8."""
    try:
        return read_bytes(uri, MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{uri}: expected UTF-8 text, found byte {error.object[error.start]:#x} at offset {error.start}"
        ) from error


def read_json(uri: str, kind: type = dict) -> Any:
    """The content of the JSON file at `uri`; raises like `json_in`, and NotFoundError."""
    return json_in(read_bytes(uri, MAX_TEXT_BYTES), uri, kind)


def json_in(text: str | bytes, where: str, kind: type = dict) -> Any:
    """The content of JSON text from the place `where`, which must be a `kind`."""
    expected = f"{where}: expected a JSON {_JSON_NAMES.get(kind, kind.__name__)}"
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise FormatError(f"{expected}, found lists or objects nested too deep") from error
    except ValueError as error:  # no JSON, no UTF-8, an integer of too many digits
        raise FormatError(f"{expected}, found something else: {error}") from error
    if not isinstance(content, kind):
        raise FormatError(f"{expected}, found {type(content).__name__}")
    return content


def copy_file(source: str, target: str) -> None:
    """Copy a file; not atomic."""
    with open_input(source) as stream, open_output(target) as copy, explained("copy", source):
        shutil.copyfileobj(stream, copy, _COPY_BYTES)


def status(uri: str) -> FileStatus | None:
    """Status of the file or folder at `uri`; None if there is none."""
    file_system, path = filesystem(uri)
    with explained("look up", uri):
        info = file_system.get_file_info(path)
    return None if info.type == pafs.FileType.NotFound else _status(info, uri)


def exists(uri: str) -> bool:
    """Tell whether there is a file or folder at `uri`."""
    return status(uri) is not None


def is_dir(uri: str) -> bool:
    """Tell whether `uri` is a folder."""
    entry = status(uri)
    return entry is not None and entry.is_dir


def list_dir(uri: str, recursive: bool = False, *, hidden: bool = False) -> list[FileStatus]:
    """The entries of the folder, sorted by URI; none for a missing folder.

    Hidden entries (`.name`) are temporary files, of this program or others. `hidden` includes them.
    Symbolic links are followed, but not into a folder that holds them.
    """
    file_system, path = filesystem(uri)
    with explained("list", uri):
        if recursive and is_local(uri):
            infos = list(_walk(path))
        else:
            selector = pafs.FileSelector(path, allow_not_found=True, recursive=recursive)
            infos = file_system.get_file_info(selector)
    root = path.rstrip("/") + "/"
    entries = [_status(info, below(uri, info.path.removeprefix(root))) for info in infos]
    if not hidden:
        entries = [entry for entry in entries if "/." not in entry.uri[len(uri.rstrip("/")) :]]
    return sorted(entries, key=lambda entry: entry.uri)


def _walk(path: str, above: tuple[str, ...] = (), num_links: int = 0) -> Iterator[pafs.FileInfo]:
    """Yield what lies below a local folder; pyarrow follows a link to a folder above it 40 times."""
    above = (*above, os.path.realpath(path))
    for info in LOCAL.get_file_info(pafs.FileSelector(path, allow_not_found=True)):
        yield info
        if info.type == pafs.FileType.Directory:
            is_link = Path(info.path).is_symlink()
            if is_link and num_links == _MAX_LINKS:
                raise OSError(
                    errno.ELOOP, f"more than {_MAX_LINKS} links, each in the folder of the one before"
                )
            if not (is_link and os.path.realpath(info.path) in above):
                yield from _walk(info.path, above, num_links + is_link)


def links_below(uri: str) -> dict[str, str]:
    """Symbolic links in the folders below `uri`, with the paths that they hold; on local disks only.

    Links to folders are followed only if they lie in `uri` itself.
    """
    path = local_path(uri)
    if path is None:
        return {}

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | PermissionError):  # a deleted or a foreign folder
            raise error

    with explained("list", uri):
        own, *others = [*os.walk(path, onerror=refuse)] or [(path, [], [])]
        for folder in (Path(path, name) for name in own[1]):
            if folder.is_symlink():
                others += islice(os.walk(folder, onerror=refuse), 1)
        files = (Path(folder, name) for folder, _, names in others for name in names)
        links = {}
        for file in files:
            with suppress(FileNotFoundError):  # deleted meanwhile
                if file.is_symlink():
                    links[str(file.relative_to(path))] = str(file.readlink())
    return {below(uri, link): target for link, target in links.items()}


def resolved(uri: str) -> str:
    """`uri` without symbolic links, if it is on local disks."""
    path = local_path(uri)
    return uri if path is None else os.path.realpath(path)


def make_dir(uri: str) -> None:
    """Make the folder and its parents, unless they exist."""
    file_system, path = filesystem(uri)
    with explained("make the folder", uri):
        file_system.create_dir(path, recursive=True)


def move(source: str, target: str) -> None:
    """Rename within one file system; an existing file at `target` is replaced atomically."""
    file_system, source_path = filesystem(source)
    with explained(f"rename to {target}", source):
        file_system.move(source_path, filesystem(target)[1])


def check_moves_folders(uri: str) -> None:
    """Raise PathError for an object store, which cannot rename folders, and for an unknown scheme."""
    if scheme(uri) in _WITHOUT_FOLDERS:
        raise PathError(
            f"{uri}: an output folder gets its name by a rename, and {scheme(uri)}:// renames no folders; it "
            "can be read from: put outputs on HDFS or a local disk"
        )
    if scheme(uri) not in ("file", "hdfs"):
        filesystem(uri)


def copy_permissions(source: str, target: str) -> None:
    """Give `target` on HDFS the group and the permission bits of `source`, if `source` exists."""
    file_system, path = filesystem(target)
    if replicates(target) and isinstance(file_system, pafs.PyFileSystem):  # libhdfs has no such functions
        with explained("set the permissions", target):
            hdfs.copy_permissions(file_system, filesystem(source)[1], path)


def move_new(source: str, target: str) -> bool:
    """Rename a file unless `target` exists; True if the file was renamed.

    Atomic on local disks and HDFS: of many callers one succeeds. Not atomic elsewhere.
    """
    file_system, source_path = filesystem(source)
    target_path = filesystem(target)[1]
    with explained(f"rename to {target}", source):
        if local_path(source) is not None:
            return _move_new_locally(Path(source_path), Path(target_path))
        if scheme(source) == "hdfs":
            return hdfs.move_new(file_system, source_path, target_path)
        if exists(target):
            return False
        file_system.move(source_path, target_path)
        return True


def _move_new_locally(source: Path, target: Path) -> bool:
    try:
        try:
            target.hardlink_to(source)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            with target.open("xb") as file:  # some container mounts have no hard links
                file.write(source.read_bytes())
    except FileExistsError:
        return False
    source.unlink()
    return True


def delete(uri: str) -> None:
    """Delete the file, or the folder with its content, if it exists."""
    file_system, path = filesystem(uri)
    while (entry := status(uri)) is not None:
        with suppress(NotFoundError), explained("delete", uri):
            (file_system.delete_dir if entry.is_dir else file_system.delete_file)(path)
            return
        # Another process has deleted a file of the folder, and Arrow has left the others.


def delete_file(uri: str) -> None:
    """Delete the file, if it exists: one call on HDFS, where `delete` first asks what it is."""
    file_system, path = filesystem(uri)
    with suppress(NotFoundError), explained("delete", uri):
        file_system.delete_file(path)


def _status(info: pafs.FileInfo, uri: str) -> FileStatus:
    is_folder = info.type == pafs.FileType.Directory
    return FileStatus(uri, is_folder, 0 if is_folder else info.size or 0, info.mtime_ns or 0)


def list_hidden(uri: str, recursive: bool = False) -> list[str]:
    """URIs of the folder's hidden entries (`.name`), sorted."""
    entries = list_dir(uri, recursive, hidden=True)
    return [entry.uri for entry in entries if name(entry.uri).startswith(".")]
