"""Pytest fixtures: one real HDFS for the session, a fresh folder of it for each test."""

import itertools
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hdfs_native
import pytest

from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.jars import why_not

_folder_numbers = itertools.count()


@contextmanager
def hadoop(**options: Any) -> Iterator[MiniHdfs]:
    """A running HDFS, which HADOOP_CONF_DIR names during the block; skips a test where there is none."""
    if reason := why_not():
        pytest.skip(f"no Hadoop: {reason}")
    # Not pytest's own temporary folder: that one is kept for three sessions, with every block in it.
    with (
        tempfile.TemporaryDirectory(prefix="graphmill-hadoop-", ignore_cleanup_errors=True) as base,
        closing(MiniHdfs(Path(base), **options)) as cluster,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
        yield cluster


@pytest.fixture(scope="session")
def hdfs() -> Iterator[MiniHdfs]:
    """A running HDFS."""
    with hadoop() as cluster:
        yield cluster


@pytest.fixture
def hdfs_uri(hdfs: MiniHdfs, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of an empty folder of this test's own, deleted afterwards."""
    name = re.sub(r"[^\w.-]", "_", request.node.name)
    folder = f"/tests/{next(_folder_numbers)}-{name}"
    client = hdfs_native.Client(hdfs.uri)
    client.mkdirs(folder, create_parent=True)
    yield hdfs.uri + folder
    client.delete(folder, recursive=True)
