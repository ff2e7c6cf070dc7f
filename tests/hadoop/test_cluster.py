"""The HDFS that the other tests stand on is real, and never outlives them."""

import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import pytest

from tests import REPOSITORY
from tests.hadoop.cluster import MiniHdfs, mini_hdfs
from tests.hadoop.jars import why_not
from tests.processes import DEADLINE_S
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.hdfs


# Starts an HDFS, says where, and waits to be killed.
PARENT = """
import sys, time
from pathlib import Path
from tests.hadoop.cluster import mini_hdfs

with mini_hdfs(Path(sys.argv[1])) as hdfs:
    print(hdfs.uri, flush=True)
    time.sleep(600)
"""


def test_a_written_file_is_read_back(hdfs: MiniHdfs, hdfs_uri: str) -> None:
    client = hdfs_native.Client(hdfs.uri)
    path = urlsplit(hdfs_uri).path + "/file"
    content = os.urandom(1 << 20) * 50
    with client.create(path) as file:
        file.write(content)

    assert client.read(path).read() == content
    status = client.get_file_info(path)
    assert (status.length, status.replication) == (len(content), 1)
    wait_until(lambda: bytes_of_blocks(hdfs) >= len(content))


def bytes_of_blocks(hdfs: MiniHdfs) -> int:
    """Bytes on the disk, where datanodes rename new blocks and delete those of earlier tests meanwhile."""
    found = 0
    for block in found_in(hdfs.conf_dir.parent / "dfs", "**/blk_*"):
        with suppress(FileNotFoundError):
            found += block.stat().st_size
    return found


def test_closing_a_file_does_not_wait_for_the_block_report(hdfs: MiniHdfs, hdfs_uri: str) -> None:
    client = hdfs_native.Client(hdfs.uri)
    numbers = itertools.count()

    def seconds_to_close() -> float:
        file = client.create(f"{urlsplit(hdfs_uri).path}/{next(numbers)}")
        file.write(b"a block")
        start = time.perf_counter()
        file.close()
        return time.perf_counter() - start

    # hdfs-native's wait is 0.5. A machine that is busy with other things is asked again.
    wait_until(lambda: statistics.median(seconds_to_close() for _ in range(20)) < 0.45)


@pytest.mark.slow
def test_the_namenode_dies_with_its_parent(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"no HDFS: {reason}")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "hdfs")],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        uri = parent.stdout.readline().strip()
        try:
            assert listens(uri)
        finally:
            parent.send_signal(signal.SIGKILL)

    wait_until(lambda: not listens(uri), DEADLINE_S)


@pytest.mark.slow
def test_a_cluster_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"no HDFS: {reason}")
    settings = {"dfs.namenode.fs-limits.max-component-length": "many"}
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*many"), mini_hdfs(tmp_path, settings=settings):
        pass


def listens(uri: str) -> bool:
    address = urlsplit(uri)
    try:
        socket.create_connection((address.hostname, address.port), timeout=60).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    except TimeoutError:  # its queue is full: the process lives, and does not get to accept
        return True
    return True
