"""Checksums of the files that a run writes, kept beside them, and compared where a file is read whole.

    entities/checksums.xxh128           of every file of the folder
    edges/train/checksums.xxh128
    checkpoint/checksums.v3.xxh128      of every file of version 3

A line a file, sorted by path: XXH3 of 128 bits in hexadecimal, two spaces, path below the manifest's folder.
`xxhsum -c checksums.xxh128` compares them too. A file that no line is about is read without being compared.

On local disks a file is compared before anything is taken from it. Elsewhere it is hashed as it is read, so
that it comes over the network once: what was made of it counts only when reading has ended without an error.
Each file is compared once a process.
"""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from graphmill.errors import FormatError, StorageError
from graphmill.storage import fs
from graphmill.storage.uri import join, local_path, name, parent

CHECKSUMS = "checksums.xxh128"

_BLOCK_BYTES = 1 << 20
_LINE = re.compile(r"(?P<escaped>\\?)(?P<checksum>[0-9a-f]{32})  (?P<path>.+)\n")
_DAMAGE = (FormatError, OSError, LookupError, RuntimeError, TypeError, ValueError, pa.ArrowException)

Checksums = dict[str, str]  # of files, by URI or by path


class Manifest(NamedTuple):
    """The file that may have a checksum, and what to do about a file that has another one."""

    uri: str
    remedy: str = "run the stage that wrote it again"


def manifest_of(folder: str) -> Manifest:
    """The manifest of a folder that a stage writes as a whole."""
    return Manifest(join(folder, CHECKSUMS))


def of_bytes(content: bytes) -> str:
    """The checksum of a file with this content."""
    return xxhash.xxh3_128_hexdigest(content)


def of_file(path: str) -> str:
    """The checksum of a local file."""
    found, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK_BYTES))
    with fs.explained("read", path), Path(path).open("rb", buffering=0) as file:
        while size := file.readinto(block):
            found.update(block[:size])
    return found.hexdigest()


def as_text(manifest_uri: str, checksums: Mapping[str, str]) -> str:
    """The content of a manifest; `checksums` are by URI, or by path below its folder."""
    found = {_path_below(manifest_uri, uri): checksum for uri, checksum in checksums.items()}
    return "".join(_line(path, found[path]) for path in sorted(found))


def _path_below(manifest_uri: str, uri: str) -> str:
    return uri.removeprefix(parent(manifest_uri).rstrip("/") + "/")


def _line(path: str, checksum: str) -> str:
    escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
    mark = "" if escaped == path else "\\"  # as xxhsum has it
    return f"{mark}{checksum}  {escaped}\n"


def read_checksums(manifest_uri: str) -> Checksums:
    """Checksums by path; none where there is no manifest.

    Raises:
        FormatError: it is not one.
    """
    found = fs.status(manifest_uri)
    return {} if found is None else dict(_read(manifest_uri, found))


@lru_cache(maxsize=64)
def _read(manifest_uri: str, _status: fs.FileStatus) -> Checksums:
    """The manifest as it is now: a process may outlive the run that wrote it."""
    found: Checksums = {}
    lines = io.StringIO(fs.read_text(manifest_uri), newline="\n").readlines()
    for number, line in enumerate(lines or [""], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise FormatError(
                f"{manifest_uri}: line {number}: expected a checksum, two spaces, a path, a line feed, found "
                f"{line[:60]!r}; delete the file to have nothing compared"
            )
        path = match["path"]
        if match["escaped"]:
            path = re.sub(r"\\(.)", lambda each: "\n" if each[1] == "n" else each[1], path)
        found[path] = match["checksum"]
    return found


class _Expected(NamedTuple):
    """Checksum that a file should have."""

    checksum: str
    manifest: Manifest
    key: tuple[Any, ...]

    def compare(self, uri: str, found: str) -> None:
        """Note that the file is right.

        Raises:
            FormatError: it has another checksum.
        """
        if found != self.checksum:
            raise FormatError(
                f"{uri}: expected the checksum {self.checksum}, as {self.manifest.uri} says, found {found}: "
                f"the file is damaged; {self.manifest.remedy}. If something else has written it since, "
                f"delete its line in {name(self.manifest.uri)}"
            )
        _compared.add(self.key)


_compared: set[tuple[Any, ...]] = set()  # by this process


def _expected(uri: str, manifest: Manifest | None) -> _Expected | None:
    """None where there is nothing to compare with, or the file as it is now has been compared."""
    status = None if manifest is None else fs.status(manifest.uri)
    if manifest is None or status is None:
        return None
    checksum = _read(manifest.uri, status).get(_path_below(manifest.uri, uri))
    file = None if checksum is None else fs.status(uri)
    if checksum is None or file is None:
        return None
    key = (uri, file.size_bytes, file.mtime_ns, checksum)
    return None if key in _compared else _Expected(checksum, manifest, key)


def read_bytes(uri: str, manifest: Manifest | None) -> bytes:
    """The whole file.

    Raises:
        FormatError: it has not the checksum that the manifest has.
    """
    content = fs.read_bytes(uri)
    if (expected := _expected(uri, manifest)) is not None:
        expected.compare(uri, of_bytes(content))
    return content


@contextmanager
def open_compared(uri: str, manifest: Manifest | None) -> Iterator[pa.NativeFile]:
    """Open for reading with random access, all of the file within the block.

    Raises:
        FormatError: it has not the checksum that the manifest has: at once, or at the end of the block.
    """
    expected = _expected(uri, manifest)
    path = local_path(uri)
    if expected is not None and path is not None:
        expected.compare(uri, of_file(path))
    with fs.open_input(uri) as stream:
        if expected is None or path is not None:
            yield stream
            return
        hashed = HashedInput(stream)
        try:
            yield pa.PythonFile(hashed, "r")
        except _DAMAGE:  # which the checksum may explain
            with suppress(StorageError):
                expected.compare(uri, hashed.checksum(uri))
            raise
        expected.compare(uri, hashed.checksum(uri))


class HashedInput(io.RawIOBase):
    """A stream that is hashed as it is read, in whatever order; what was not read in order is at the end."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._hash = xxhash.xxh3_128()
        self._num_hashed = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        """Current position."""
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        """Read what comes next."""
        start = self._stream.tell()
        if self._num_hashed < start <= self._num_hashed + _BLOCK_BYTES:  # a hole that nobody asks for
            self._stream.seek(self._num_hashed)
            self._add(self._stream.read(start - self._num_hashed))
            self._stream.seek(start)
        view = memoryview(buffer).cast("B")
        size = int(self._stream.readinto(view))
        if start <= self._num_hashed < start + size:
            self._add(view[self._num_hashed - start : size])
        return size

    def checksum(self, uri: str) -> str:
        """The checksum of the whole file; reads what is left."""
        with fs.explained("read", uri):
            self._stream.seek(self._num_hashed)
            while block := self._stream.read(_BLOCK_BYTES):
                self._add(block)
        return self._hash.hexdigest()

    def _add(self, content: bytes | memoryview) -> None:
        self._hash.update(content)
        self._num_hashed += len(content)


class HashedOutput(io.RawIOBase):
    """A stream that is hashed as it is written."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._hash = xxhash.xxh3_128()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, content: Any) -> int:
        """Write what comes next."""
        self._hash.update(content)
        self._stream.write(content)
        return len(content)

    def checksum(self) -> str:
        """The checksum of what was written."""
        return self._hash.hexdigest()
