"""Several workers train on HDFS: copies of what they leave for each other, and of the checkpoint."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import numpy as np
import pytest

from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.test_new_files import conf
from tests.train.distributed.test_distributed import several_workers
from tests.train.graphs import random_triples, write_graph
from tests.workers import workers
from train import job


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
def test_only_commits_are_replicated(
    hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions that are written behind have one copy, committed ones as many as dfs.replication."""
    conf(tmp_path, monkeypatch, dfs__replication="2")
    config = several_workers(hdfs_uri, 2, num_epochs=5)
    write_graph(config, {"node": 200}, random_triples(np.random.default_rng(3), 200, 1, 200, 4000))
    client, checkpoint = hdfs_native.Client(hdfs.uri), urlsplit(config.checkpoint_path).path
    temporary: dict[str, int] = {}
    with workers(2) as dask, ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, config, dask)
        while not running.done():
            temporary |= {k: v for k, v in copies(client, checkpoint).items() if "/.spread.tmp-" in k}
        assert running.result()["version"] == 5
    assert 1 in temporary.values()
    committed = copies(client, checkpoint)
    assert len(committed) == 4
    assert set(committed.values()) == {2}
