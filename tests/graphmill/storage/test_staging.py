"""HDF5 files for HDFS lie on the local disk until they are complete."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill import storage

WRITER = """
import os, signal, sys
from graphmill import storage
with storage.create_hdf5(sys.argv[1]) as file:
    file["x"] = [1, 2]
    if sys.argv[2:] == ["killed"]:
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.hdfs
def test_the_next_process_removes_what_a_killed_one_has_staged(tmp_path: Path, hdfs_uri: str) -> None:
    uri, environment = f"{hdfs_uri}/rows.h5", os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", WRITER, uri]
    killed = subprocess.run([*command, "killed"], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.rglob("*.h5")] != []
    assert not storage.exists(uri)
    subprocess.run(command, env=environment, check=True)
    assert storage.exists(uri)
    assert list(tmp_path.iterdir()) == []
