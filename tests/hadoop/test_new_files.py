"""Replication, block size and permissions of what is written to HDFS."""

from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import pytest

from graphmill import storage
from graphmill.errors import ConfigError
from graphmill.storage import hadoop_conf
from tests.hadoop.cluster import MiniHdfs


def conf(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    properties = "".join(
        f"<property><name>{name.replace('__', '.').replace('_', '-')}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))


@pytest.mark.hdfs
def test_new_files_follow_the_configuration(
    hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, path = hdfs_native.Client(hdfs.uri), urlsplit(hdfs_uri).path
    storage.write_text(f"{hdfs_uri}/by-default", "x")
    assert client.get_file_info(f"{path}/by-default").permission == 0o644
    conf(tmp_path, monkeypatch, dfs__replication="2", dfs__blocksize="2m", fs__permissions__umask_mode="027")
    storage.write_text(f"{hdfs_uri}/folder/file", "x")
    file, folder = (client.get_file_info(f"{path}/folder{name}") for name in ("/file", ""))
    assert (file.replication, file.blocksize, file.permission) == (2, 2 << 20, 0o640)
    assert folder.permission == 0o750
    with storage.open_output(f"{hdfs_uri}/passing", replication=1) as stream:
        stream.write(b"x")
    assert client.get_file_info(f"{path}/passing").replication == 1


@pytest.mark.hdfs
def test_a_replacement_keeps_permissions_and_group(hdfs: MiniHdfs, hdfs_uri: str) -> None:
    client, path = hdfs_native.Client(hdfs.uri), urlsplit(hdfs_uri).path
    storage.write_text(f"{hdfs_uri}/file", "old")
    with storage.atomic_directory(f"{hdfs_uri}/folder") as folder:
        storage.write_text(f"{folder}/x", "old")
    client.set_permission(f"{path}/file", 0o600)
    client.set_owner(f"{path}/file", None, "analysts")
    client.set_permission(f"{path}/folder", 0o770)
    storage.write_text(f"{hdfs_uri}/file", "new")
    with storage.atomic_directory(f"{hdfs_uri}/folder") as folder:
        storage.write_text(f"{folder}/x", "new")
    file = client.get_file_info(f"{path}/file")
    assert (storage.read_text(f"{hdfs_uri}/file"), file.permission, file.group) == ("new", 0o600, "analysts")
    assert client.get_file_info(f"{path}/folder").permission == 0o770


@pytest.mark.hdfs
def test_deleted_files_do_not_go_to_the_trash(hdfs: MiniHdfs, hdfs_uri: str) -> None:
    storage.write_text(f"{hdfs_uri}/file", "x")
    storage.delete(f"{hdfs_uri}/file")
    assert not [
        each.uri for each in storage.list_dir(f"{hdfs.uri}/user", recursive=True) if "Trash" in each.uri
    ]


@pytest.mark.parametrize(
    ("text", "umask"), [("022", 0o022), ("0077", 0o077), ("u=rwx,g=rx,o=", 0o027), ("a=rwx", 0), ("7", 7)]
)
def test_umasks_are_octal_or_symbolic(text: str, umask: int) -> None:
    assert hadoop_conf.parse_umask(text) == umask


@pytest.mark.parametrize(
    ("key", "value"), [("dfs__blocksize", "big"), ("fs__permissions__umask_mode", "u+x")]
)
def test_an_invalid_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    conf(tmp_path, monkeypatch, **{key: value})
    with pytest.raises(ConfigError, match=f"expected .*{value[0]}"):
        hadoop_conf.new_files()
