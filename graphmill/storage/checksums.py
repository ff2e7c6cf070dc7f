"""Checksums of the files that a run writes: a manifest beside the files, compared when a file is read whole.

    entities/checksums.xxh128           of every file of the folder
    edges/train/checksums.xxh128
    checkpoint/checksums.v3.xxh128      of every file of version 3
    embeddings/_checksums.xxh128        of every table; Spark and others skip names that begin with _

One line per file, sorted by path: XXH3 of 128 bits in hexadecimal, two spaces, path below the manifest's
folder. `xxhsum -c checksums.xxh128` compares them too. A file without a line is not compared.

A local file is compared before it is read. A remote file is hashed while it is read, and so crosses the
network once: its content is valid only after reading ends without an error. Each process compares a file
once.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from graphmill.errors import FormatError, StorageError
from graphmill.storage import fs
from graphmill.storage.filesystems import explained
from graphmill.storage.uri import join, local_path, name, parent

CHECKSUMS = "checksums.xxh128"
PUBLISHED = "_checksums.xxh128"

_BLOCK_BYTES = 1 << 20
_LINE = re.compile(r"(?P<escaped>\\?)(?P<checksum>[0-9a-f]{32})  (?P<path>.+)\n")
_DAMAGE = (FormatError, OSError, LookupError, RuntimeError, TypeError, ValueError, pa.ArrowException)

Checksums = dict[str, str]  # of files, by URI or by path


class ChecksumManifest(NamedTuple):
    """The URI of a manifest, and the remedy for a file with another checksum."""

    uri: str
    remedy: str = "run the stage that wrote it again"


def manifest_of(folder: str) -> ChecksumManifest:
    """The manifest of a folder that a stage writes as a whole."""
    return ChecksumManifest(join(folder, CHECKSUMS))


def published_manifest(folder: str) -> ChecksumManifest:
    """The manifest of a folder of tables that other programs read too."""
    return ChecksumManifest(join(folder, PUBLISHED), "write the folder again")


def manifest_of_table(uri: str) -> ChecksumManifest | None:
    """The manifest beside a published table or above its folder; None for tables of others."""
    manifests = map(published_manifest, (parent(uri), parent(parent(uri))))
    return next((manifest for manifest in manifests if fs.exists(manifest.uri)), None)


def of_bytes(content: bytes) -> str:
    """The checksum of a file with this content."""
    return xxhash.xxh3_128_hexdigest(content)


def of_file(uri: str) -> str:
    """The checksum of a file."""
    with fs.open_input(uri) as stream, explained("read", uri):
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def as_text(manifest_uri: str, checksums: Mapping[str, str]) -> str:
    """The content of a manifest; `checksums` are by URI, or by path below its folder."""
    checksums_by_path = {_path_below(manifest_uri, uri): checksum for uri, checksum in checksums.items()}
    lines = []
    for path in sorted(checksums_by_path):
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        mark = "" if escaped == path else "\\"  # as in xxhsum
        lines.append(f"{mark}{checksums_by_path[path]}  {escaped}\n")
    return "".join(lines)


def _path_below(manifest_uri: str, uri: str) -> str:
    return uri.removeprefix(parent(manifest_uri).rstrip("/") + "/")


def read_checksums(manifest_uri: str) -> Checksums:
    """Checksums by path; empty without a manifest."""
    status = fs.status(manifest_uri)
    return {} if status is None else dict(_read(manifest_uri, status))


@lru_cache(maxsize=64)
def _read(manifest_uri: str, _status: fs.FileStatus) -> Checksums:
    """The manifest, cached by its status: another run may replace the file."""
    checksums: Checksums = {}
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
            path = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], path)
        checksums[path] = match["checksum"]
    return checksums


_compared: set[tuple[Any, ...]] = set()  # by this process


def _comparison(uri: str, manifest: ChecksumManifest | None) -> Callable[[str], None] | None:
    """A function that raises FormatError for a checksum other than the manifest's.

    None without a checksum to compare, or if the file has been compared and did not change since.
    """
    if manifest is None or (status := fs.status(manifest.uri)) is None:
        return None
    expected = _read(manifest.uri, status).get(_path_below(manifest.uri, uri))
    file = None if expected is None else fs.status(uri)
    if file is None or (key := (uri, file.size_bytes, file.mtime_ns, expected)) in _compared:
        return None

    def compare(actual: str) -> None:
        if actual != expected:
            raise FormatError(
                f"{uri}: expected the checksum {expected}, as {manifest.uri} says, found {actual}: the file "
                f"is damaged; {manifest.remedy}. If something else has written it since, delete its line in "
                f"{name(manifest.uri)}"
            )
        _compared.add(key)

    return compare


def read_bytes(uri: str, manifest: ChecksumManifest | None, max_bytes: int = fs.MAX_TEXT_BYTES) -> bytes:
    """The whole file, which is a text."""
    content = fs.read_bytes(uri, max_bytes)
    if (compare := _comparison(uri, manifest)) is not None:
        compare(of_bytes(content))
    return content


@contextmanager
def open_compared(uri: str, manifest: ChecksumManifest | None) -> Iterator[pa.NativeFile]:
    """Open for reading with random access; the block must read the whole file."""
    compare, path = _comparison(uri, manifest), local_path(uri)
    if compare is not None and path is not None:
        compare(of_file(path))
    with fs.open_input(uri) as stream:
        if compare is None or path is not None:
            yield stream
            return
        hashed = HashedInput(stream)
        try:
            yield pa.PythonFile(hashed, "r")
        except _DAMAGE:  # another checksum may explain the error
            with suppress(StorageError):
                compare(hashed.checksum(uri))
            raise
        compare(hashed.checksum(uri))


class HashedInput(io.RawIOBase):
    """A stream that is hashed while it is read, in any order; `checksum` reads the skipped parts."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._hash = xxhash.xxh3_128()
        self._num_hashed = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        """The current position."""
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        start = self._stream.tell()
        if self._num_hashed < start <= self._num_hashed + _BLOCK_BYTES:  # a small gap
            self._stream.seek(self._num_hashed)
            self._add(self._stream.read(start - self._num_hashed))
            self._stream.seek(start)
        view = memoryview(buffer).cast("B")
        size = int(self._stream.readinto(view))
        if start <= self._num_hashed < start + size:
            self._add(view[self._num_hashed - start : size])
        return size

    def checksum(self, uri: str) -> str:
        """The checksum of the whole file; reads the rest of the file."""
        with explained("read", uri):
            self._stream.seek(self._num_hashed)
            while block := self._stream.read(_BLOCK_BYTES):
                self._add(block)
        return self._hash.hexdigest()

    def _add(self, content: bytes | memoryview) -> None:
        self._hash.update(content)
        self._num_hashed += len(content)


class HashedOutput(io.RawIOBase):
    """A stream that is hashed while it is written."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._hash = xxhash.xxh3_128()

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, content: Any) -> int:
        """Append bytes."""
        self._hash.update(content)
        self._stream.write(content)
        return len(content)

    def checksum(self) -> str:
        """The checksum of the written bytes."""
        return self._hash.hexdigest()
