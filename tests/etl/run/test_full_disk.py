"""A full disk: a clear error, the old output is whole, and the next run continues."""

import subprocess
import sys
from pathlib import Path

import distributed
import pytest

from etl import job
from tests.etl.run.test_kill import REPOSITORY, folders, graph_config, hidden
from tests.processes import DEADLINE_S

# No file may grow beyond the limit: for the writer it is the same as a full disk.
WITH_LIMIT = """
import resource, signal, sys
from pathlib import Path
import distributed
from etl import job
from graphmill.cluster import tasks
from graphmill.errors import StorageError
from tests.etl.run.test_kill import graph_config
if __name__ == "__main__":
    config = graph_config(Path(sys.argv[1]), 1)
    tasks.RETRY_DELAYS_S = ()
    with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=":0") as client:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        try:
            job.run(config, client)
        except StorageError as error:
            sys.exit(f"StorageError: {error}")
"""


@pytest.mark.slow
def test_a_full_disk(near_client: distributed.Client, tmp_path: Path) -> None:
    job.run(graph_config(tmp_path, 0), near_client)
    graph_config(tmp_path, 1)
    before = folders(tmp_path)
    for limit, file in (
        (1_000, ".json"),
        (6_000, ".ids"),
        (9_000, ".ids|rows.i32|codes.arrow|parquet"),
    ):
        command = [sys.executable, "-c", WITH_LIMIT, str(tmp_path), str(limit)]
        ended = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert ended.returncode == 1
        assert "StorageError" in ended.stderr, ended.stderr
        assert "File too large" in ended.stderr
        assert any(name in ended.stderr for name in file.split("|"))
        assert folders(tmp_path) == before
    job.run(graph_config(tmp_path, 1), near_client)
    assert not hidden(tmp_path)
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    job.run(graph_config(undisturbed, 1), near_client)
    assert folders(tmp_path) == folders(undisturbed)
