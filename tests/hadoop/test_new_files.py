"""Replication, block size and permissions of what is written to HDFS, by workers that train there too."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import numpy as np
import pytest
from distributed import Client

from graphmill import storage
from graphmill.errors import ConfigError
from graphmill.storage import hadoop_conf
from tests.train.distributed.test_distributed import several_workers
from tests.train.graphs import random_triples, write_graph
from train import job


def conf(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    properties = "".join(
        f"<property><name>{name.replace('__', '.').replace('_', '-')}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))


@pytest.mark.hdfs
def test_files_follow_the_configuration_and_what_they_replace(hdfs, hdfs_uri, tmp_path, monkeypatch):
    client, path = hdfs_native.Client(hdfs.uri), urlsplit(hdfs_uri).path
    storage.write_text(f"{hdfs_uri}/file", "old")
    with storage.atomic_directory(f"{hdfs_uri}/replaced") as folder:
        storage.write_text(f"{folder}/x", "old")
    assert client.get_file_info(f"{path}/file").permission == 0o644
    client.set_permission(f"{path}/file", 0o600)
    client.set_owner(f"{path}/file", None, "analysts")
    client.set_permission(f"{path}/replaced", 0o770)
    storage.write_text(f"{hdfs_uri}/file", "new")
    with storage.atomic_directory(f"{hdfs_uri}/replaced") as folder:
        storage.write_text(f"{folder}/x", "new")
    file = client.get_file_info(f"{path}/file")
    assert (storage.read_text(f"{hdfs_uri}/file"), file.permission, file.group) == ("new", 0o600, "analysts")
    assert client.get_file_info(f"{path}/replaced").permission == 0o770
    storage.delete(f"{hdfs_uri}/file")
    assert not [each for each in storage.list_dir(f"{hdfs.uri}/user", recursive=True) if "Trash" in each.uri]

    conf(tmp_path, monkeypatch, dfs__replication="2", dfs__blocksize="2m", fs__permissions__umask_mode="027")
    storage.write_text(f"{hdfs_uri}/folder/file", "x")
    file, made = (client.get_file_info(f"{path}/folder{name}") for name in ("/file", ""))
    assert (file.replication, file.blocksize, file.permission) == (2, 2 << 20, 0o640)
    assert made.permission == 0o750
    with storage.open_output(f"{hdfs_uri}/passing", replication=1) as stream:
        stream.write(b"x")
    assert client.get_file_info(f"{path}/passing").replication == 1


def test_umasks_are_octal_or_symbolic() -> None:
    umasks = {"022": 0o022, "0077": 0o077, "u=rwx,g=rx,o=": 0o027, "a=rwx": 0, "7": 7}
    assert {text: hadoop_conf.parse_umask(text) for text in umasks} == umasks


@pytest.mark.parametrize(
    ("key", "value"), [("dfs__blocksize", "big"), ("fs__permissions__umask_mode", "u+x")]
)
def test_an_invalid_value_is_refused(tmp_path, monkeypatch, key, value):
    conf(tmp_path, monkeypatch, **{key: value})
    with pytest.raises(ConfigError, match=f"expected .*{value[0]}"):
        hadoop_conf.new_files()


def copies(client: hdfs_native.Client, folder: str) -> dict[str, int]:
    """The number of copies of each file of vectors below a folder that others change meanwhile."""
    found = {}
    with suppress(FileNotFoundError):
        for each in client.list_status(folder, recursive=True):
            if each.path.endswith(".h5") and "embeddings" in each.path:
                found[each.path] = each.replication
    return found


@pytest.mark.hdfs
@pytest.mark.slow
def test_only_commits_are_replicated(hdfs, hdfs_uri, tmp_path, monkeypatch):
    """Partitions that are written behind have one copy, committed ones as many as dfs.replication."""
    conf(tmp_path, monkeypatch, dfs__replication="2")
    config = several_workers(hdfs_uri, 2, num_epochs=3)
    write_graph(config, {"node": 200}, random_triples(np.random.default_rng(3), 200, 1, 200, 2000))
    client, checkpoint = hdfs_native.Client(hdfs.uri), urlsplit(config.checkpoint_path).path
    temporary: dict[str, int] = {}
    here = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with Client(**here) as dask, ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, config, dask)
        while not running.done():
            temporary |= {k: v for k, v in copies(client, checkpoint).items() if "/.spread.tmp-" in k}
            time.sleep(0.02)
        assert running.result()["version"] == 3
    assert 1 in temporary.values()
    committed = copies(client, checkpoint)
    assert len(committed) == 4
    assert set(committed.values()) == {2}
