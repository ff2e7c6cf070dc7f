"""HDFS as a pyarrow file system, through hdfs-native (Rust, no JVM) or through libhdfs.

hdfs-native reads HADOOP_CONF_DIR: name services, Kerberos, encryption. Its rename fails on an existing
target unless told to overwrite; the namenode then replaces it atomically. Its writer: see `hdfs_writer`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import ConfigError
from graphmill.storage import hadoop_conf
from graphmill.storage.hdfs_writer import Cluster, open_new, patiently, within

DRIVER_VARIABLE = "GRAPHMILL_HDFS_DRIVER"
DRIVERS = ("native", "libhdfs")
TIMEOUT_VARIABLE = "GRAPHMILL_HDFS_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 20.0
REPLICATION = "replication"  # key of a stream's metadata


def chosen_driver() -> str:
    """The driver that GRAPHMILL_HDFS_DRIVER names (native)."""
    return os.environ.get(DRIVER_VARIABLE) or DRIVERS[0]


@contextmanager
def use_driver(name: Any) -> Iterator[None]:
    """Set GRAPHMILL_HDFS_DRIVER during the block, unless the variable is set or there is no driver `name`."""
    if DRIVER_VARIABLE in os.environ or name not in DRIVERS:
        yield
        return
    os.environ[DRIVER_VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[DRIVER_VARIABLE]


def connect(uri: str) -> pafs.FileSystem:
    """The file system of `uri`'s authority, by the chosen driver.

    Raises:
        ConfigError: there is no such driver, or no namenode is known for the URI.
        OSError: the namenode does not answer in time.
    """
    driver = chosen_driver()
    if driver not in DRIVERS:
        raise ConfigError(f"{DRIVER_VARIABLE}: expected one of {', '.join(DRIVERS)}, found {driver!r}")
    authority = urlsplit(uri)
    if driver == "libhdfs":
        return pafs.HadoopFileSystem(authority.hostname or "default", authority.port or 0)
    from hdfs_native.fsspec import HdfsFileSystem

    try:
        # No instance cache: a client must not outlive the test or process that it was made for.
        native = HdfsFileSystem(
            authority.hostname, authority.port, skip_instance_cache=True, **hadoop_conf.client_defaults()
        )
    except RuntimeError as error:  # of the configuration: nothing has been asked yet
        raise ConfigError(_unknown(uri, str(error))) from error
    # What fsspec has here cuts off what follows a `?` or a `#`: another file would be touched.
    native._strip_protocol = _unchanged
    _probe(native.client)
    return pafs.PyFileSystem(_Handler(native))


def _unknown(uri: str, reason: str) -> str:
    conf_dir = os.environ.get(hadoop_conf.VARIABLE)
    found = f"which is {conf_dir}, and does not name it" if conf_dir else "which is not set"
    return (
        f"{uri}: no namenode is known for it ({reason}); set {hadoop_conf.VARIABLE}, {found}, to the folder "
        "of core-site.xml and hdfs-site.xml, or name host and port: hdfs://HOST:PORT/..."
    )


def _unchanged(path: str) -> str:
    return path


def reason_of(error: RuntimeError) -> str:
    """Its message without the server's stack trace, with advice where Kerberos is the matter."""
    reason = str(error).partition(r"\n\tat ")[0].partition("\n")[0]
    if "GSS" in reason or "SASL" in reason:
        reason += "; is there a ticket (klist), or does KRB5_CLIENT_KTNAME name a keytab?"
    return reason


def copy_permissions(file_system: pafs.FileSystem, source: str, target: str) -> None:
    """Give `target` the group and the permission bits of `source`, if that is there."""
    if isinstance(file_system, pafs.HadoopFileSystem):
        return  # libhdfs, as pyarrow has it, cannot
    client = file_system.handler.fs.client
    try:
        old = client.get_file_info(source)
    except FileNotFoundError:
        return
    new = client.get_file_info(target)
    if old.permission != new.permission:
        patiently(lambda: client.set_permission(target, old.permission))
    if old.group != new.group:
        patiently(lambda: client.set_owner(target, None, old.group))


def move_new(file_system: pafs.FileSystem, source: str, target: str) -> bool:
    """Rename in one step unless `target` is there; whether it was done."""
    try:
        if isinstance(file_system, pafs.HadoopFileSystem):
            file_system.move(source, target)  # libhdfs renames without replacing
        else:
            client = file_system.handler.fs.client
            patiently(lambda: client.rename(source, target, overwrite=False))
    except Exception:
        found = [each.type != pafs.FileType.NotFound for each in file_system.get_file_info([source, target])]
        if not found[1]:
            raise
        return not found[0]  # an attempt whose answer was lost has done it
    return True


def _probe(client: Any) -> None:
    # hdfs-native tries a namenode that refuses for minutes and one that is silent for ever, which is right
    # in the middle of a run and wrong at its start. A blocked call cannot be interrupted, only left behind.
    chosen = os.environ.get(TIMEOUT_VARIABLE) or str(DEFAULT_TIMEOUT_S)
    try:
        timeout_s = float(chosen)
    except ValueError as error:
        raise ConfigError(f"{TIMEOUT_VARIABLE}: expected seconds, found {chosen!r}") from error
    try:
        within(timeout_s, lambda: client.get_file_info("/"))
    except TimeoutError as error:
        raise OSError(
            f"the namenode did not answer within {timeout_s:g} s; is it up, and does HADOOP_CONF_DIR "
            f"name it? ({TIMEOUT_VARIABLE} sets the limit)"
        ) from error


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """pyarrow's fsspec bridge with writing and renaming as hdfs-native wants them."""

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._cluster = Cluster(fs.client)

    @staticmethod
    def _create_file_info(path: str, found: dict[str, Any]) -> pafs.FileInfo:
        # pyarrow looks for `mtime`, which hdfs-native calls by another name.
        mtime_s = found.get("modification_time", 0) / 1000
        info: pafs.FileInfo = pafs.FSSpecHandler._create_file_info(path, {**found, "mtime": mtime_s})
        return info

    def open_output_stream(self, path: str, metadata: dict[str, str] | None) -> pa.NativeFile:
        from hdfs_native import WriteOptions

        ours = hadoop_conf.new_files()
        # Nobody else has this file open: what a failed attempt left is replaced.
        options = WriteOptions(
            overwrite=True,
            replication=int((metadata or {}).get(REPLICATION, 0)) or ours.replication,
            block_size=ours.block_size_bytes,
            permission=0o666 & ~ours.umask,
        )
        return pa.PythonFile(open_new(self._cluster, path, options), mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:
        permission = 0o777 & ~hadoop_conf.new_files().umask
        patiently(lambda: self.fs.client.mkdirs(path, permission=permission, create_parent=recursive))

    def delete_dir(self, path: str) -> None:
        patiently(lambda: self.fs.client.delete(path, recursive=True))

    def delete_file(self, path: str) -> None:
        patiently(lambda: self.fs.client.delete(path))

    def open_append_stream(self, path: str, metadata: dict[str, str] | None) -> pa.NativeFile:
        raise NotImplementedError("nothing is appended to")

    def move(self, src: str, dest: str) -> None:
        patiently(lambda: self.fs.mv(src, dest, overwrite=True))
