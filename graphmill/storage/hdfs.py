"""HDFS as a pyarrow file system, through hdfs-native (Rust, no JVM) or through libhdfs.

hdfs-native reads HADOOP_CONF_DIR: name services, Kerberos, encryption. Its writer is fast for `bytes`
only: any other buffer is walked byte by byte as Python integers (120 MB: 9.4 s instead of 0.8 s), and
pyarrow hands over `pyarrow.Buffer`s; hence the writer below. Its rename fails on an existing target
unless told to overwrite; the namenode then replaces it atomically.
"""

import io
import os
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import ConfigError

DRIVER_VARIABLE = "GRAPHMILL_HDFS_DRIVER"
DRIVERS = ("native", "libhdfs")


def connect(uri: str) -> pafs.FileSystem:
    """The file system of `uri`'s authority, by the driver that GRAPHMILL_HDFS_DRIVER names (native).

    Raises:
        ConfigError: there is no such driver.
    """
    driver = os.environ.get(DRIVER_VARIABLE) or DRIVERS[0]
    if driver not in DRIVERS:
        raise ConfigError(f"{DRIVER_VARIABLE}: expected one of {', '.join(DRIVERS)}, found {driver!r}")
    authority = urlsplit(uri)
    if driver == "libhdfs":
        return pafs.HadoopFileSystem(authority.hostname or "default", authority.port or 0)
    from hdfs_native.fsspec import HdfsFileSystem

    # No instance cache: a client must not outlive the test or process that it was made for.
    native = HdfsFileSystem(authority.hostname, authority.port, skip_instance_cache=True)
    return pafs.PyFileSystem(_Handler(native))


class _BytesWriter(io.RawIOBase):
    """Hands hdfs-native the `bytes` that it is fast with."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, buffer: Any) -> int:
        self._writer.write(memoryview(buffer).tobytes())
        return len(buffer)

    def close(self) -> None:
        if not self.closed:
            self._writer.close()
        super().close()


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """pyarrow's fsspec bridge with writing and renaming as hdfs-native wants them."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None) -> pa.NativeFile:
        return pa.PythonFile(_BytesWriter(self.fs.open(path, "wb")), mode="w")

    def open_append_stream(self, path: str, metadata: dict[str, str] | None) -> pa.NativeFile:
        return pa.PythonFile(_BytesWriter(self.fs.open(path, "ab")), mode="w")

    def move(self, src: str, dest: str) -> None:
        self.fs.mv(src, dest, overwrite=True)
