"""HDF5 files on any storage; HDF5 needs a local path to write to."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import pyarrow as pa

from graphmill.errors import FormatError
from graphmill.storage import atomic, fs, run_folder
from graphmill.storage import checksums as hashing
from graphmill.storage.checksums import ChecksumManifest, Checksums
from graphmill.storage.filesystems import explained
from graphmill.storage.uri import local_path, name

COPY_BYTES = 8 << 20
HEAD_BYTES = 16 << 10


@contextmanager
def create_hdf5(
    uri: str, checksums: Checksums | None = None, *, replication: int | None = None
) -> Iterator[h5py.File]:
    """Create an HDF5 file that becomes the file at `uri`, atomically, when the block ends.

    `checksums` gets the checksum of the file. `replication` is the number of copies on HDFS (None: its
    default); other storage ignores it.
    """
    temporary = atomic.temporary_sibling(uri)
    final_path = local_path(temporary)
    with ExitStack() as stack, atomic.discarded_on_error(temporary):
        folder = "" if final_path else stack.enter_context(run_folder.temporary())
        path = final_path or str(Path(folder, name(uri)))
        with explained("write" if final_path else "stage", uri):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with _new_hdf5(path) as hdf5:
                yield hdf5
        if checksums is not None:  # HDF5 writes in any order; reading the page cache again is fast
            checksums[uri] = hashing.of_file(path)
        if not final_path:
            with explained("upload", uri), Path(path).open("rb") as source:  # noqa: SIM117
                with fs.open_output(temporary, replication=replication) as target:
                    shutil.copyfileobj(source, target, COPY_BYTES)
        atomic.replace_file(temporary, uri)


@contextmanager
def _new_hdf5(path: str) -> Iterator[h5py.File]:
    """Create a local file, which closes after any error.

    HDF5 keeps a file open that it cannot write when it closes it, and crashes the process at its end. So no
    rows wait in buffers until then, and after an error the rest is written to memory, for nobody.
    """
    with h5py.File(path, "w", rdcc_nbytes=0) as usual:
        access = usual.id.get_access_plist()
    access.set_sieve_buf_size(0)
    hdf5 = h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access))
    try:
        yield hdf5
        hdf5.flush()
    except BaseException:
        memory = os.memfd_create("discarded")
        os.dup2(memory, hdf5.id.get_vfd_handle())
        os.close(memory)
        with suppress(RuntimeError, OSError):  # of a limit for files (ulimit -f), which memory has too
            hdf5.close()
        raise
    hdf5.close()


class _ReadAhead(io.RawIOBase):
    """A remote file whose first bytes, where most HDF5 files describe their datasets, are read at once.

    h5py reads under a lock of its own: threads that open files would wait for each other's datanodes.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._size = source.size()
        self._head = source.read(min(HEAD_BYTES, self._size))
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes: as many as there are, since HDF5 does not ask again."""
        view = memoryview(buffer).cast("B")
        head = self._head[self._at : self._at + len(view)]
        view[: len(head)] = head
        size = len(head)
        if size < len(view):
            self._source.seek(self._at + size)
            size += int(self._source.readinto(view[size:]))
        self._at += size
        return size


@contextmanager
def open_hdf5(uri: str, manifest: ChecksumManifest | None = None) -> Iterator[h5py.File]:
    """Open the HDF5 file at `uri`; with a `manifest`, compare the whole file with its checksum."""
    with hashing.open_compared(uri, manifest) as source:
        try:
            hdf5 = h5py.File(local_path(uri) or _ReadAhead(source), "r")
        except OSError as error:
            raise FormatError(
                f"{uri}: expected an HDF5 file, found something else or a part: {error}"
            ) from error
        with hdf5:
            yield hdf5
