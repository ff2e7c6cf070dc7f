"""Local stand-ins for libraries that want a path or a seekable file: HDF5 above all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py

from graphmill.errors import DiskFullError, FormatError
from graphmill.storage import atomic, fs
from graphmill.storage import checksums as hashing
from graphmill.storage.checksums import Checksums, Manifest
from graphmill.storage.uri import local_path, name

COPY_BYTES = 8 << 20


@contextmanager
def staged_output(uri: str, checksums: Checksums | None = None) -> Iterator[str]:
    """A local path; the file written there becomes the file at `uri`, atomically, when the block ends.

    `checksums` is told of it.
    """
    temporary = atomic.temporary_sibling(uri)
    path = local_path(temporary)
    with atomic.discarded_on_error(temporary):
        if path is not None:
            with fs.explained("write", uri):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                yield path
            _tell(checksums, uri, path)
        else:
            with tempfile.TemporaryDirectory(prefix="graphmill-") as folder:
                path = str(Path(folder) / name(uri))
                with fs.explained("stage", uri):
                    yield path
                _tell(checksums, uri, path)
                with fs.explained("upload", uri), Path(path).open("rb") as source:  # noqa: SIM117
                    with fs.open_output(temporary) as target:
                        shutil.copyfileobj(source, target, COPY_BYTES)
        atomic.replace_file(temporary, uri)


def _tell(checksums: Checksums | None, uri: str, path: str) -> None:
    """Read again, from the page cache, what HDF5 has written here and there."""
    if checksums is not None:
        checksums[uri] = hashing.of_file(path)


@contextmanager
def create_hdf5(uri: str, checksums: Checksums | None = None) -> Iterator[h5py.File]:
    """A new HDF5 file that becomes the file at `uri`, atomically, when the block ends.

    `checksums` is told of it.

    Raises:
        StorageError: it cannot be written: the disk is full, for one.
    """
    with staged_output(uri, checksums) as path:
        hdf5 = h5py.File(path, "w")
        try:
            yield hdf5
        except BaseException:
            with suppress(RuntimeError, OSError):  # the first error is the one to tell
                hdf5.close()
            raise
        try:
            hdf5.close()
        except RuntimeError as error:  # what h5py makes of a disk that is full when HDF5 flushes
            raise DiskFullError(f"{uri}: cannot write: {error}") from error


@contextmanager
def open_hdf5(uri: str, manifest: Manifest | None = None) -> Iterator[h5py.File]:
    """The HDF5 file at `uri`, read in place; with the `manifest` of its checksum, read whole.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not HDF5, or cut short, or has not the checksum that the manifest has.
    """
    with hashing.open_compared(uri, manifest) as source:
        try:
            hdf5 = h5py.File(local_path(uri) or source, "r")
        except OSError as error:
            raise FormatError(
                f"{uri}: expected an HDF5 file, found something else or a part: {error}"
            ) from error
        with hdf5:
            yield hdf5
