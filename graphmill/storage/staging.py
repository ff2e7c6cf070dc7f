"""HDF5 files on any storage; HDF5 needs a local path to write to."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import h5py

from graphmill.errors import DiskFullError, FormatError
from graphmill.storage import atomic, fs
from graphmill.storage import checksums as hashing
from graphmill.storage.checksums import Checksums, Manifest
from graphmill.storage.uri import local_path, name

COPY_BYTES = 8 << 20


@contextmanager
def _staged_output(uri: str, checksums: Checksums | None) -> Iterator[str]:
    """A local path; the file written there becomes the file at `uri`, atomically, when the block ends."""
    temporary = atomic.temporary_sibling(uri)
    final_path = local_path(temporary)
    with ExitStack() as stack, atomic.discarded_on_error(temporary):
        folder = (
            stack.enter_context(tempfile.TemporaryDirectory(prefix="graphmill-")) if not final_path else ""
        )
        path = final_path or str(Path(folder, name(uri)))
        with fs.explained("write" if final_path else "stage", uri):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            yield path
        if checksums is not None:  # HDF5 writes in any order; reading the page cache again is fast
            checksums[uri] = hashing.of_file(path)
        if not final_path:
            with fs.explained("upload", uri), Path(path).open("rb") as source:  # noqa: SIM117
                with fs.open_output(temporary) as target:
                    shutil.copyfileobj(source, target, COPY_BYTES)
        atomic.replace_file(temporary, uri)


@contextmanager
def create_hdf5(uri: str, checksums: Checksums | None = None) -> Iterator[h5py.File]:
    """Create an HDF5 file that becomes the file at `uri`, atomically, when the block ends.

    `checksums` gets the checksum of the file.

    Raises:
        StorageError: the file cannot be written; for example, the disk is full.
    """
    with _staged_output(uri, checksums) as path:
        hdf5 = h5py.File(path, "w")
        try:
            yield hdf5
        except BaseException:
            with suppress(RuntimeError, OSError):  # the first error matters
                hdf5.close()
            raise
        try:
            hdf5.close()
        except RuntimeError as error:  # h5py's error if the disk is full when HDF5 flushes
            raise DiskFullError(f"{uri}: cannot write: {error}") from error


@contextmanager
def open_hdf5(uri: str, manifest: Manifest | None = None) -> Iterator[h5py.File]:
    """Open the HDF5 file at `uri`; with a `manifest`, compare the whole file with its checksum.

    Raises:
        NotFoundError: there is no such file.
        FormatError: the file is not HDF5, is cut short, or has another checksum.
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
