"""Storage on local disks and on a real HDFS: the same behaviour, and nothing half-written."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import errors, storage
from graphmill.storage import atomic, fs, hdfs
from graphmill.storage.filesystems import explained
from tests import REPOSITORY
from tests.processes import DEADLINE_S, full_disk, speaking


def names(uri: str) -> list[str]:
    uris = [each.uri for each in storage.list_dir(uri)]
    return [storage.name(each) for each in (*uris, *fs.list_hidden(uri))]


# ---- URIs


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("a", "b"), "a/b"),
        (("/a/", "b", "c"), "/a/b/c"),
        (("hdfs://ns/a", "b"), "hdfs://ns/a/b"),
        (("hdfs://ns/a", "/b"), "/b"),
        (("hdfs:///", "a"), "hdfs:///a"),
        (("/", "a"), "/a"),
        (("a", "hdfs://ns/b"), "hdfs://ns/b"),
    ],
)
def test_join(parts: tuple[str, ...], joined: str) -> None:
    assert storage.join(*parts) == joined


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1),
    st.sampled_from(["/r", "r", "/", "hdfs://h:1", "hdfs://h:1/r", "hdfs:///"]),
)
def test_name_and_parent_undo_join(name: str, root: str) -> None:
    joined = storage.join(root, name)
    assert (storage.parent(joined), storage.name(joined)) == (root, name)


def test_local_paths_of_uris() -> None:
    assert storage.local_path("file:///a/b%20c") == "/a/b c"
    assert storage.local_path("/a/b%20c") == "/a/b%20c"
    assert storage.local_path("x") == str(Path.cwd() / "x")
    assert storage.local_path("hdfs://h/a") is None
    assert storage.local_path("file://localhost/a?b#c") == "/a?b#c"


# ---- reading and writing


def test_within_a_folder(tmp_path: Path) -> None:
    """`..`, links, other schemes and other hosts lead out of the folder."""
    root = str(tmp_path / "run")
    (tmp_path / "run" / "real").mkdir(parents=True)
    (tmp_path / "run" / "out").symlink_to("/etc")
    (tmp_path / "alias").symlink_to("run")
    inside = [root, f"{root}/x", f"file://{root}/x", f"{root}/./a/../b", str(tmp_path / "alias" / "real")]
    outside = [f"{root}/../x", f"{root}x", f"{root}/out/x", "/", f"hdfs://host{root}/x"]
    outside.append(f"file://{root}/%2e%2e")
    for remote in ("hdfs://host:9/a/run", "hdfs://host:9/a/run/"):
        assert all(storage.within(remote, f"hdfs://host:9{each}") for each in ("/a/run", "/a//run/x"))
        for each in ("host:9/a/run/../x", "host:9/a/runs", "other:9/a/run", "/a/run", "host:9"):
            assert not storage.within(remote, f"hdfs://{each}"), each
        assert not storage.within(remote, "/a/run")
        assert not storage.within(remote, "s3://host:9/a/run")
    assert storage.within("hdfs://host/", "hdfs://host/a")
    assert [each for each in inside if not storage.within(root, each)] == []
    assert [each for each in outside if storage.within(root, each)] == []


_OPEN_ALL = """
import sys
from graphmill import storage
from graphmill.errors import FormatError
for uri in sys.argv[1:]:
    for open_it in (storage.read_text, lambda uri: storage.open_hdf5(uri).__enter__()):
        try:
            open_it(uri)
        except FormatError as error:
            print(error)
"""


def test_pipes_devices_and_sockets_are_refused_at_once(tmp_path, monkeypatch):
    """A reader of a pipe without a writer would wait without end."""
    monkeypatch.chdir(tmp_path)  # a socket's address has a hundred characters at most
    fifo, linked, unix = (str(tmp_path / name) for name in ("fifo", "linked", "unix"))
    os.mkfifo(fifo)
    Path(linked).symlink_to(fifo)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("unix")
        command = [sys.executable, "-c", _OPEN_ALL, fifo, linked, unix, "/dev/zero"]
        output = subprocess.check_output(command, cwd=REPOSITORY, text=True, timeout=DEADLINE_S)
    found = ["a named pipe (FIFO)"] * 4 + ["a socket"] * 2 + ["a device"] * 2
    told = output.splitlines()
    assert len(told) == len(found)
    assert all(f"expected a file, found {kind}" in line for kind, line in zip(found, told, strict=True))


def test_a_file_is_written_listed_read_and_deleted(root: str) -> None:
    uri = storage.join(root, "deep", "down", "x.txt")
    before = time.time()
    storage.write_text(uri, "häuser")
    assert storage.read_text(uri) == "häuser"
    with storage.open_input(uri) as stream:
        stream.seek(4)
        assert (stream.read(3), stream.size()) == (b"ser", 7)
    found = storage.status(uri)
    assert found.size_bytes == 7
    (listed,) = storage.list_dir(storage.parent(uri))
    assert all(before - 1 < each.mtime_ns / 1e9 < time.time() + 1 for each in (found, listed))
    assert [each.uri for each in storage.list_dir(root, recursive=True) if not each.is_dir] == [uri]
    storage.write_text(uri, "again")
    assert storage.read_text(uri) == "again"
    assert [storage.read_if_there(f"{uri}{rest}") for rest in ("", "2", "/below")] == [b"again", None, None]
    assert not storage.create_text(uri, "second")
    assert storage.create_text(f"{uri}2", "first")
    assert (storage.read_text(uri), storage.read_text(f"{uri}2")) == ("again", "first")
    with storage.atomic_output(uri) as stream:
        stream.write(b"ab\xff")
    with pytest.raises(errors.FormatError, match="0xff at offset 2"):
        storage.read_text(uri)
    storage.delete(storage.join(root, "deep"))
    assert storage.list_dir(root) == []
    with pytest.raises(errors.NotFoundError, match="down/x"):
        storage.read_bytes(uri)
    assert storage.status(uri) is None
    assert storage.list_dir(uri) == []
    storage.delete(uri)


def test_any_name_is_written_listed_read_and_deleted(root: str) -> None:
    beside = storage.join(root, "a")  # what is left of some names where a query or a fragment is cut off
    storage.write_text(beside, "beside")
    for name in ("a b", "a%20b", "50%", "ä#b", "a?b", "[a]", "a+b&c=d"):
        storage.write_text(storage.join(root, name, name), "x")
        (found,) = (each for each in storage.list_dir(root, recursive=True) if each.size_bytes == 1)
        assert storage.read_text(found.uri) == "x"
        assert storage.status(found.uri) == found
        storage.delete(storage.join(root, name))
        assert names(root) == ["a"]
    assert storage.read_text(beside) == "beside"


@pytest.mark.parametrize("name", ["a b", "a%20b", "50%", "ä#b", "a?b", "a\nb"])
def test_any_name_below_a_file_uri(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_text("x")
    (tmp_path / f".{name}").write_text("y")
    root = tmp_path.as_uri()
    (found,) = (each for each in storage.list_dir(root, recursive=True) if not each.is_dir)
    assert storage.read_text(found.uri) == "x"
    (hidden,) = fs.list_hidden(root)
    assert storage.read_text(hidden) == "y"


def test_big_writes_keep_every_byte(root: str) -> None:
    content = np.random.default_rng(0).bytes(9_000_001)
    with storage.atomic_output(storage.join(root, "big")) as stream:
        stream.write(memoryview(content)[:4_000_000])
        stream.write(content[4_000_000:])
    assert storage.read_bytes(storage.join(root, "big")) == content


def test_a_concurrent_delete_is_no_error(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several savers may delete the same folder at the same time."""
    status = fs.status

    def seen_and_then_gone(uri: str) -> storage.FileStatus | None:
        found = status(uri)
        if found is not None:
            file_system, path = storage.filesystem(uri)
            (file_system.delete_dir if found.is_dir else file_system.delete_file)(path)
        return found

    storage.write_text(f"{root}/file", "x")
    storage.write_text(f"{root}/folder/file", "x")
    with monkeypatch.context() as patch:
        patch.setattr(fs, "status", seen_and_then_gone)
        storage.delete(f"{root}/file")
        storage.delete(f"{root}/folder")
    assert names(root) == []


def test_a_folder_is_deleted_while_others_delete_files_in_it(tmp_path: Path) -> None:
    """Workers that end delete the files that they were writing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number}").touch()
    half = [each for each in list(folder.iterdir())[::-1] if int(each.name) % 2]
    begun = threading.Event()

    def delete_half() -> None:
        begun.set()
        for each in half:
            each.unlink(missing_ok=True)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(delete_half)
        begun.wait()
        storage.delete(str(folder))
        other.result()
    assert not folder.exists()


# ---- whole or not at all


def test_an_error_while_writing_leaves_the_old_file(root: str) -> None:
    uri = storage.join(root, "x")
    storage.write_text(uri, "old")
    with pytest.raises(RuntimeError), storage.atomic_output(uri) as stream:
        stream.write(b"new, but n")
        raise RuntimeError
    with pytest.raises(RuntimeError), storage.create_hdf5(uri) as hdf5:
        hdf5["numbers"] = np.arange(10)
        raise RuntimeError
    assert storage.read_text(uri) == "old"
    assert names(root) == ["x"]


def test_a_folder_is_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("disk/out")
    for number in range(2):  # a folder that is not there yet, and one that is replaced
        with storage.atomic_directory(f"{tmp_path}/link"):
            assert len(list((tmp_path / "disk").glob("out"))) == number
    assert (names(f"{tmp_path}/disk"), (tmp_path / "link").is_symlink()) == (["out"], True)


def test_a_folder_appears_whole_and_replaces_the_old_one(root: str) -> None:
    uri = storage.join(root, "out")
    for generation in ("one", "two"):
        with storage.atomic_directory(uri) as temporary:
            storage.write_text(storage.join(temporary, generation), generation)
            assert generation not in names(uri)
    with pytest.raises(RuntimeError), storage.atomic_directory(uri) as temporary:
        storage.write_text(storage.join(temporary, "three"), "")
        raise RuntimeError
    assert (names(uri), names(root)) == (["two"], ["out"])
    storage.move(uri, atomic.temporary_sibling(uri, "old"))  # and a kill, before the second renaming
    storage.write_text(storage.join(atomic.temporary_sibling(uri), "new"), "")
    storage.recover(uri)
    assert (names(uri), names(root)) == (["two"], ["out"])
    storage.write_text(storage.join(atomic.temporary_sibling(uri, "old"), "one"), "")  # a kill after it
    storage.recover(uri)
    assert (names(uri), names(root)) == (["two"], ["out"])


def test_sweep_removes_leftovers_only(root: str) -> None:
    storage.write_text(storage.join(root, "kept"), "")
    storage.write_text(storage.join(root, ".hidden"), "")
    storage.write_text(storage.temporary_sibling(storage.join(root, "x")), "half")
    storage.sweep(root)
    assert names(root) == ["kept", ".hidden"]


def test_markers(root: str) -> None:
    assert storage.read_marker(root) is None
    storage.write_marker(root, {"a": [1, "x"]})
    assert storage.read_marker(root) == {"a": [1, "x"]}
    storage.delete_marker(root)
    assert storage.read_marker(root) is None
    storage.write_text(storage.join(root, storage.MARKER), "{half")
    with pytest.raises(errors.FormatError, match="_SUCCESS"):
        storage.read_marker(root)


WRITER = """
    import sys
    from graphmill import storage
    while True:
        for size in (10, 3_000_000):
            with storage.atomic_output(sys.argv[1]) as stream:
                stream.write(bytes([size % 251]) * size)
                print(size, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_never_leaves_a_part(tmp_path: Path) -> None:
    uri = str(tmp_path / "x")
    for delay_s in (0.0, 0.005, 0.02, 0.05):
        with speaking(sys.executable, "-c", textwrap.dedent(WRITER), uri) as (child, _):
            child.stdout.readline()
            time.sleep(delay_s)
            child.send_signal(signal.SIGKILL)
        content = storage.read_bytes(uri)
        assert len(content) in (10, 3_000_000)
        assert content == bytes([len(content) % 251]) * len(content)
    storage.sweep(str(tmp_path))
    assert names(str(tmp_path)) == ["x"]


def test_a_full_disk_is_an_error_that_leaves_the_old_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "x")
    storage.write_text(uri, "old")
    failed = pytest.raises(errors.StorageError, match="x: cannot write")
    with full_disk(100_000), failed, storage.atomic_output(uri) as stream:
        stream.write(b"n" * 1_000_000)
    for size in (1_000_000, 12_000, 10):  # HDF5 writes at once, or when a dataset or the file ends
        failed = pytest.raises(errors.DiskFullError, match=r"x\.h5: cannot write: .*File too large")
        with failed, storage.create_hdf5(f"{uri}.h5") as hdf5, full_disk(100_000):
            hdf5["numbers"] = np.arange(size)
            hdf5.create_dataset("more", (13_000, 2), "f4", chunks=True, fletcher32=True)[:] = 1.5
            hdf5.flush()
    kept = [each.resolve() for each in Path("/proc/self/fd").iterdir()]  # HDF5 would crash the process
    assert not [each for each in kept if each.is_relative_to(tmp_path)]
    assert storage.read_text(uri) == "old"
    assert names(str(tmp_path)) == ["x"]


def test_a_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, path = [], tmp_path / "x"
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, path.exists())))
    for write in (storage.write_text, storage.create_text):
        path.unlink(missing_ok=True)
        write(str(path), "text")
        assert synced.pop() == (path.stat().st_ino, False)


# ---- HDF5


def test_hdf5_that_is_cut_short_or_something_else_is_refused(root: str) -> None:
    whole = storage.join(root, "deep", "x.h5")
    with storage.create_hdf5(whole) as hdf5:
        hdf5["numbers"] = np.arange(10_000)
    with storage.open_hdf5(whole) as hdf5:
        assert hdf5["numbers"][9_990:].tolist() == list(range(9_990, 10_000))
    cut = storage.read_bytes(whole)[:-1000]
    for name, content in (("cut.h5", cut), ("text.h5", b"no hdf5"), ("empty.h5", b"")):
        with storage.atomic_output(storage.join(root, name)) as stream:
            stream.write(content)
        with pytest.raises(errors.FormatError, match=name), storage.open_hdf5(storage.join(root, name)):
            pass
    with pytest.raises(errors.NotFoundError), storage.open_hdf5(storage.join(root, "none.h5")):
        pass


def test_of_many_writers_one_wins_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
        refused = OSError(reason, os.strerror(reason))
        monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=refused))
        made = [atomic.create_text(str(tmp_path / str(reason)), text) for text in ("first", "second")]
        assert (made, (tmp_path / str(reason)).read_text()) == ([True, False], "first")
    assert len(list(tmp_path.iterdir())) == 4


# ---- services


def test_a_read_only_disk_is_no_reason_to_try_again() -> None:
    refused = pytest.raises(errors.PathError, match="x: cannot write: Read-only")
    with refused as error, explained("write", "x"):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    assert error.value.exit_code == 2


def test_buckets_and_what_is_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, path in (("/a/b#c", "/a/b#c"), ("/a/", "/a/"), ("/", "/"), ("", "")):
        assert storage.filesystem(f"gs://anonymous@bucket{uri}")[1] == f"bucket{path}"
    with pytest.raises(
        errors.StorageError, match="s3://bucket/x: an output folder gets its name by a rename"
    ):
        storage.atomic_directory("s3://bucket/x").__enter__()
    with pytest.raises(errors.StorageError, match="gopher"):
        storage.read_bytes("gopher://host/x")
    with pytest.raises(errors.PathError, match="hdfs:/user/x: expected hdfs:///user/x"):
        storage.absolute("hdfs:/user/x")  # as Hadoop writes it; below this folder nobody would look for it
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(errors.StorageError) as no_java:
        storage.exists("viewfs:///x")
    assert "Hadoop's own client needs JAVA_HOME" in str(no_java.value)
    assert len(str(no_java.value)) < 300  # of the places that pyarrow has tried
    monkeypatch.setenv(hdfs.DRIVER_VARIABLE, "java")
    with pytest.raises(errors.ConfigError, match="expected one of native, libhdfs, found 'java'"):
        hdfs.connect("hdfs://localhost:1/")


@pytest.mark.slow
@pytest.mark.parametrize("listening", [True, False], ids=["silent", "refusing"])
def test_hdfs_that_does_not_answer_is_an_error(listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hdfs.TIMEOUT_VARIABLE, "0.5")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        if listening:
            nobody.listen()
        uri = f"hdfs://127.0.0.1:{nobody.getsockname()[1]}/x"
        with pytest.raises(errors.StorageError, match=r"hdfs://127.*did not answer within 0\.5 s; is it up"):
            storage.read_bytes(uri)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (errors.AccessError, "security.AccessControl", r"Permission denied: user=al, inode=\"/ro\":root"),
        (errors.AccessError, "hdfs.protocol.SnapshotAccessControl", "Modification is disallowed"),
        (errors.DiskFullError, "hdfs.protocol.NSQuotaExceeded", "The NameSpace quota of /ns is exceeded"),
        (errors.PathError, "hdfs.protocol.FSLimitException$PathComponentTooLong", "limit=255 length=300"),
        (errors.StorageError, "hdfs.server.namenode.SafeMode", r"Cannot create file/x.\nIt was turned on."),
    ],
)
def test_what_a_namenode_refuses(kind: type[errors.StorageError], name: str, text: str) -> None:
    """By the form of hdfs-native's errors, which hold Java's stack trace."""
    error = f'"org.apache.hadoop.{name}Exception", "{text}\\n\\tat org.apache.Main.main(Main.java:1)\\n"'
    with pytest.raises(errors.StorageError) as caught, explained("create", "hdfs://h/x"):
        raise RuntimeError(f"RPCError({error})")
    told = text.replace(r"\"", '"').replace(r"\n", " ")
    reason = f"{re.split('[.$]', name)[-1]}Exception: {told}"
    assert (type(caught.value), str(caught.value)) == (kind, f"hdfs://h/x: cannot create: {reason}")


@pytest.mark.hdfs
def test_below_a_file_there_is_nothing(hdfs_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namenode tells all but its superuser that they lack a permission."""
    storage.write_text(f"{hdfs_uri}/file", "")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    path = f"/{hdfs_uri.split('/', 3)[3]}/file/_delta_log"
    assert hdfs.connect(hdfs_uri).get_file_info(path).type == fs.pafs.FileType.NotFound


@pytest.mark.hdfs
def test_the_default_file_system_and_an_error_of_the_namenode(hdfs_uri: str) -> None:
    storage.write_text(storage.join(hdfs_uri, "x"), "here")
    without_host = "hdfs:///" + hdfs_uri.split("/", 3)[3]
    assert storage.read_text(storage.join(without_host, "x")) == "here"
    storage.write_text(storage.join(without_host, "y"), "too")
    assert [storage.name(each.uri) for each in storage.list_dir(without_host)] == ["x", "y"]
    with pytest.raises(errors.StorageError, match="cannot") as refused:
        storage.write_text(storage.join(hdfs_uri, "x", "below a file"), "")
    assert "\tat " not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1  # of the many that Java has


def test_a_copy_has_the_same_bytes_whatever_its_name(root: str) -> None:
    """pyarrow compresses what it writes to a name as x.gz, unless it is told not to."""
    storage.write_text(f"{root}/file", "text")
    storage.copy_file(f"{root}/file", f"{root}/copy.gz")
    assert storage.read_bytes(f"{root}/copy.gz") == b"text"
