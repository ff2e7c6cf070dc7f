"""Atomic writes: readers see the old file or folder, or the new one, never a part.

A file is written under a hidden temporary name beside its target, and then renamed over the target. So is a
folder, after its predecessor was moved aside. A kill leaves the old state or the new state, and hidden files
that `sweep` removes:

    out/.part-0.parquet.tmp-3f9c...    a file that was being written
    .embeddings.tmp-3f9c...            a folder that was being written
    .embeddings.old-3f9c...            the predecessor, while the new folder takes its name

A finished folder in the way of another is moved aside, as `checkpoint.stale-1`, and never deleted. A
finished folder holds the marker `_SUCCESS`: JSON, the fingerprint of its settings and inputs.
"""

import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from graphmill.errors import FormatError, GraphMillError
from graphmill.storage import checksums as hashing
from graphmill.storage import fs
from graphmill.storage.checksums import Checksums
from graphmill.storage.filesystems import explained
from graphmill.storage.fs import json_in
from graphmill.storage.uri import join, local_path, name, parent

MARKER = "_SUCCESS"

WRITE_BACK_S = 0.05


def temporary_sibling(uri: str, kind: str = "tmp") -> str:
    """Return a hidden, unused name beside `uri`."""
    return join(parent(uri), f".{name(uri)}.{kind}-{uuid.uuid4().hex[:12]}")


@contextmanager
def discarded_on_error(*temporary: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Remove unfinished files or folders when the block ends with an error, and if `check` raises none."""
    try:
        yield
    except BaseException:
        with suppress(GraphMillError):  # the first error matters
            check()
            for uri in temporary:
                fs.delete(uri)
        raise


@contextmanager
def atomic_output(
    uri: str, *, is_large: bool = False, checksums: Checksums | None = None
) -> Iterator[pa.NativeFile]:
    """Yield a stream whose bytes become the file at `uri` when the block ends without an error.

    `is_large`: write to the disk continuously, not all in the final sync. `checksums` gets the checksum.
    """
    temporary = temporary_sibling(uri)
    path = local_path(temporary)
    with discarded_on_error(temporary):
        with explained("write", uri), fs.open_output(temporary) as stream, ExitStack() as stack:
            if is_large and path is not None:
                stack.enter_context(_written_back(path))
            if checksums is None or path is not None:
                yield stream
            else:
                hashed = hashing.HashedOutput(stream)
                yield pa.PythonFile(hashed, "w")
                checksums[uri] = hashed.checksum()
        if checksums is not None and path is not None:  # faster than hashing the stream
            checksums[uri] = hashing.of_file(path)
        replace_file(temporary, uri)


@contextmanager
def _written_back(path: str) -> Iterator[None]:
    """Write back the bytes that the block adds to a file, so that the final sync is short."""
    is_done = threading.Event()

    def follow(number: int) -> None:
        begun = 0
        while not is_done.wait(WRITE_BACK_S):
            size = os.fstat(number).st_size
            if size > begun:  # writes back dirty pages but keeps them cached
                os.posix_fadvise(number, begun, size - begun, os.POSIX_FADV_DONTNEED)
            begun = size

    with Path(path).open("rb") as file:  # here, where an error is that of the writer
        thread = threading.Thread(target=follow, args=(file.fileno(),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()


def replace_file(temporary: str, uri: str) -> None:
    """Rename a finished temporary file over `uri`; on local disks the file is synced first."""
    _sync_local(temporary)
    if local_path(uri) is None and fs.move_new(temporary, uri):
        return  # on HDFS one call, where most files are new
    fs.copy_permissions(uri, temporary)
    fs.move(temporary, uri)


def write_text(uri: str, text: str, checksums: Checksums | None = None) -> None:
    """Write a small UTF-8 file atomically; `checksums` gets its checksum."""
    with atomic_output(uri, checksums=checksums) as stream:
        stream.write(text.encode())


def write_json(uri: str, content: Any, checksums: Checksums | None = None, **style: Any) -> None:
    """Write a small JSON file as `write_text`; `style` as for `json.dumps`."""
    write_text(uri, json.dumps(content, **style) + "\n", checksums)


def write_checksums(manifest_uri: str, checksums: Mapping[str, str]) -> None:
    """Write a manifest of `checksums` by URI, or by path below the manifest's folder."""
    write_text(manifest_uri, hashing.as_text(manifest_uri, checksums))


def create_text(uri: str, text: str) -> bool:
    """Write a small UTF-8 file unless it exists; return whether it was written. Of many writers one wins."""
    temporary = temporary_sibling(uri)
    with discarded_on_error(temporary):
        with explained("write", uri), fs.open_output(temporary) as stream:
            stream.write(text.encode())
        _sync_local(temporary)
        created = fs.move_new(temporary, uri)
    if not created:
        fs.delete(temporary)
    return created


@contextmanager
def atomic_directory(uri: str) -> Iterator[str]:
    """Yield a temporary folder that becomes the folder `uri` when the block ends without an error."""
    uri = fs.resolved(uri)  # a link stays, and the new folder is on the disk that it names
    fs.check_moves_folders(uri)
    recover(uri)
    temporary = temporary_sibling(uri)
    fs.make_dir(temporary)
    with discarded_on_error(temporary):
        yield temporary
        replace_directory(temporary, uri)


def replace_directory(temporary: str, uri: str) -> None:
    """Rename a finished temporary folder to `uri`; the folder that was there is deleted afterwards."""
    aside = temporary_sibling(uri, "old")
    if fs.exists(uri):
        fs.copy_permissions(uri, temporary)
        fs.move(uri, aside)
    fs.move(temporary, uri)
    fs.delete(aside)


def recover(uri: str, *, keep: str | None = None) -> None:
    """Put back a folder that a killed write moved aside; remove unfinished writes of `uri`, except `keep`."""
    aside, unfinished = f".{name(uri)}.old-", f".{name(uri)}.tmp-"
    for leftover in fs.list_hidden(parent(uri)):
        if name(leftover).startswith(aside) and not fs.exists(uri):
            fs.move(leftover, uri)
        elif name(leftover).startswith((aside, unfinished)) and name(leftover) != name(keep or ""):
            fs.delete(leftover)


def moved_aside(uri: str) -> list[str]:
    """Return the folders that `move_aside` moved away from `uri`, oldest first."""
    form = re.compile(re.escape(name(uri)) + r"\.stale-([0-9]{1,18})")
    places = [(form.fullmatch(name(entry.uri)), entry.uri) for entry in fs.list_dir(parent(uri))]
    return [place for _, place in sorted((int(match[1]), place) for match, place in places if match)]


def is_moved_aside(uri: str) -> bool:
    """Tell whether `move_aside` gave the folder its name."""
    return re.search(r"\.stale-[0-9]+$", name(uri)) is not None


def move_aside(uri: str) -> str:
    """Rename the folder to `{uri}.stale-N`, and return that name. Only the user deletes the folder."""
    fs.check_moves_folders(uri)
    target = name_aside(uri)
    fs.move(uri, target)
    return target


def name_aside(uri: str) -> str:
    """Return the next unused name `{uri}.stale-N`."""
    last = (moved_aside(uri) or [".stale-0"])[-1]
    return f"{uri.rstrip('/')}.stale-{int(last.rpartition('-')[2]) + 1}"


def sweep(directory: str) -> None:
    """Remove temporary files of killed writes from `directory`, which must belong to one run."""
    for leftover in fs.list_hidden(directory):
        if ".tmp-" in name(leftover):
            fs.delete(leftover)


def write_marker(directory: str, fingerprint: Mapping[str, Any]) -> None:
    """Mark the folder as finished; `fingerprint` (JSON types) describes its settings and inputs."""
    write_json(join(directory, MARKER), fingerprint, indent=1, sort_keys=True)


def read_marker(directory: str) -> dict[str, Any] | None:
    """Read the fingerprint of a finished folder; None if the folder is not finished."""
    uri = join(directory, MARKER)
    try:
        if (content := fs.read_if_there(uri)) is None:
            return None
        fingerprint = json_in(content or b"{}", uri, object)
    except FormatError as error:
        raise FormatError(f"{error}; delete it to redo") from error
    return fingerprint if isinstance(fingerprint, dict) else {}


def delete_marker(directory: str) -> None:
    """Mark the folder as unfinished, before its content changes."""
    fs.delete(join(directory, MARKER))


def _sync_local(uri: str) -> None:
    """Sync a local file before its rename: no crash leaves a part under the final name."""
    if (path := local_path(uri)) is None:
        return
    with explained("sync", uri), Path(path).open("rb") as file:
        os.fsync(file.fileno())
