"""HDFS as a pyarrow file system, through hdfs-native (Rust, no JVM) or libhdfs.

hdfs-native reads HADOOP_CONF_DIR: name services, Kerberos, encryption. Its rename fails on an existing
target unless told to overwrite; the namenode then replaces it atomically. Its writer: see `hdfs_writer`.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from graphmill.errors import ConfigError, PathError
from graphmill.storage import hadoop_conf
from graphmill.storage.hdfs_writer import Cluster, open_new, patiently, within

DRIVER_VARIABLE = "GRAPHMILL_HDFS_DRIVER"
DRIVERS = ("native", "libhdfs")
TIMEOUT_VARIABLE = "GRAPHMILL_HDFS_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 20.0
REPLICATION = "replication"  # keys of a stream's metadata
PARENTS = "parents"  # for hdfs-native, whose file system is a PyFileSystem: it saves a call for each file
DEFAULT_REPLICATION = 3  # dfs.replication, where the configuration does not say
_ANSWER = re.compile(r'(?:Fatal)?RPCError\("(?:[\w.$]+[.$])?(\w+)", "(.*)"\)', re.DOTALL)


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
    """Connect to the file system of `uri`'s authority, with the chosen driver."""
    driver = chosen_driver()
    if driver not in DRIVERS:
        raise ConfigError(f"{DRIVER_VARIABLE}: expected one of {', '.join(DRIVERS)}, found {driver!r}")
    try:
        host, port = urlsplit(uri).hostname, urlsplit(uri).port
    except ValueError as error:
        raise PathError(f"{uri}: expected hdfs://HOST:PORT/..., with a port up to 65535: {error}") from error
    if driver == "libhdfs":
        return pafs.HadoopFileSystem(host or "default", port or 0)
    from hdfs_native.fsspec import HdfsFileSystem

    try:
        # No instance cache: a client must not outlive the test or process that it was made for.
        native = HdfsFileSystem(host, port, skip_instance_cache=True, **hadoop_conf.client_defaults())
    except RuntimeError as error:  # wrong configuration: no namenode has been asked yet
        conf_dir = os.environ.get(hadoop_conf.VARIABLE)
        state = f"which is {conf_dir}, and does not name it" if conf_dir else "which is not set"
        raise ConfigError(
            f"{uri}: no namenode is known for it ({error}); set {hadoop_conf.VARIABLE}, {state}, to the "
            "folder of core-site.xml and hdfs-site.xml, or name host and port: hdfs://HOST:PORT/..."
        ) from error
    # fsspec's own function cuts a path at `?` or `#`, and so names another file.
    native._strip_protocol = str
    _probe(native.client)
    return pafs.PyFileSystem(_Handler(native))


def reason_of(text: str) -> str:
    """The text of a client's error in one line, without Java's stack trace, and with advice on Kerberos."""
    if answer := _ANSWER.match(text):
        text = f"{answer[1]}: {answer[2]}".replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\"", '"')
    reason = " ".join(re.split(r"\n\s*at ", text)[0].split())
    if (start := reason.partition(" dlopen(")[0]) != reason:  # pyarrow names all places that it has tried
        return f"{start}; Hadoop's own client needs JAVA_HOME, CLASSPATH and libhdfs.so (ARROW_LIBHDFS_DIR)"
    if "GSS" in reason or "SASL" in reason:
        reason += "; is there a ticket (klist), or does KRB5_CLIENT_KTNAME name a keytab?"
    return reason


def copy_permissions(file_system: pafs.FileSystem, source: str, target: str) -> None:
    """Give `target` the group and the permission bits of `source`, if `source` exists."""
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


def replicate(file_system: pafs.FileSystem, path: str) -> None:
    """Have the namenode make the default number of copies of a file, in the background."""
    copies = hadoop_conf.new_files().replication or DEFAULT_REPLICATION
    patiently(lambda: file_system.handler.fs.client.set_replication(path, copies))


def move_new(file_system: pafs.FileSystem, source: str, target: str) -> bool:
    """Rename in one step unless `target` exists; True if the file was renamed."""
    try:
        if isinstance(file_system, pafs.HadoopFileSystem):
            file_system.move(source, target)  # libhdfs renames without replacing
        else:
            client = file_system.handler.fs.client
            patiently(lambda: client.rename(source, target, overwrite=False))
    except Exception:
        old, new = (info.type for info in file_system.get_file_info([source, target]))
        if new == pafs.FileType.NotFound:
            raise
        return bool(old == pafs.FileType.NotFound)  # then an attempt succeeded whose answer was lost
    return True


def _probe(client: Any) -> None:
    # hdfs-native retries a refusing namenode for minutes, and a silent namenode without end: right during a
    # run, wrong at its start. Nothing can interrupt a blocked call.
    chosen = os.environ.get(TIMEOUT_VARIABLE) or str(DEFAULT_TIMEOUT_S)
    try:
        timeout_s = float(chosen)
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise ValueError("no limit of a wait")
    except ValueError as error:
        raise ConfigError(f"{TIMEOUT_VARIABLE}: expected seconds, found {chosen!r}") from error
    try:
        within(timeout_s, lambda: client.get_file_info("/"))
    except TimeoutError as error:
        raise OSError(
            f"the namenode did not answer within {timeout_s:g} s; is it up, and does HADOOP_CONF_DIR "
            f"name it? ({TIMEOUT_VARIABLE} sets the limit)"
        ) from error


def _finding(ask: Callable[[str], Any]) -> Callable[[str], Any]:
    """Have a path below a file raise FileNotFoundError: the namenode calls it a lack of permission."""

    def asked(path: str) -> Any:
        try:
            return ask(path)
        except RuntimeError as error:
            is_below_a_file = "(is not a directory)" in str(error)
            raise (FileNotFoundError(path) if is_below_a_file else error) from None

    return asked


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """pyarrow's bridge to fsspec, with hdfs-native's ways of writing and renaming."""

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._cluster = Cluster(fs.client)
        fs.info, self._read = _finding(fs.info), _finding(fs.client.read)
        self._list = _finding(lambda folder: list(fs.client.list_status(folder)))

    @staticmethod
    def _create_file_info(path: str, entry: dict[str, Any]) -> pafs.FileInfo:
        # pyarrow reads `mtime`, for which hdfs-native has another name.
        mtime_s = entry.get("modification_time", 0) / 1000
        info: pafs.FileInfo = pafs.FSSpecHandler._create_file_info(path, {**entry, "mtime": mtime_s})
        return info

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._read(path), mode="r")

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Ask the namenode once for each folder; pyarrow's own way asks four times."""
        root = selector.base_dir.rstrip("/") or "/"
        folders, found = [root], []
        while folders:
            folder = folders.pop()
            try:
                entries = self._list(folder)
            except FileNotFoundError:  # folders below the first one may be deleted meanwhile
                if folder == root and not selector.allow_not_found:
                    raise
                continue
            if any(entry.path == folder for entry in entries):  # a file is its only entry
                raise NotADirectoryError(folder)
            found += [
                self._create_file_info(each.path, self.fs._convert_file_status(each)) for each in entries
            ]
            folders += [entry.path for entry in entries if entry.isdir and selector.recursive]
        return found

    def open_output_stream(self, path: str, metadata: dict[str, str] | None) -> pa.NativeFile:
        from hdfs_native import WriteOptions

        ours = hadoop_conf.new_files()
        # No other writer has this file open: the file of a failed attempt is replaced.
        options = WriteOptions(
            overwrite=True,
            replication=int((metadata or {}).get(REPLICATION, 0)) or ours.replication,
            block_size=ours.block_size_bytes,
            permission=0o666 & ~ours.umask,
            create_parent=False,
        )
        try:
            file = open_new(self._cluster, path, options)
        except FileNotFoundError:
            if PARENTS not in (metadata or {}):
                raise
            self.create_dir(path.rpartition("/")[0] or "/", recursive=True)
            file = open_new(self._cluster, path, options)
        return pa.PythonFile(file, mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:
        permission = 0o777 & ~hadoop_conf.new_files().umask
        patiently(lambda: self.fs.client.mkdirs(path, permission=permission, create_parent=recursive))

    def delete_dir(self, path: str) -> None:
        patiently(lambda: self.fs.client.delete(path, recursive=True))

    def delete_file(self, path: str) -> None:
        patiently(lambda: self.fs.client.delete(path))

    def move(self, src: str, dest: str) -> None:
        patiently(lambda: self.fs.mv(src, dest, overwrite=True))
