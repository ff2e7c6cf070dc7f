"""A full disk: a clear error, the old output is whole, and the next run continues."""

import resource
import signal
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import distributed
import pytest

from etl import job
from graphmill.cluster import tasks
from tests.etl.graphs import run_saved, saved
from tests.etl.run.test_kill import folders, graph_config, hidden, new_output, old_run
from tests.forked import Forks

__all__ = ["new_output", "old_run"]


def run_with_limit() -> None:
    """Run where no file may grow beyond the limit: for the writer it is the same as a full disk."""
    tasks.RETRY_DELAYS_S = ()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        run_saved()
    finally:  # the limit is for the error's own file too
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_full_disk(
    near_client: distributed.Client,
    forked: Forks,
    tmp_path: Path,
    old_run: Path,
    new_output: dict[str, Any],
) -> None:
    copytree(old_run, tmp_path, dirs_exist_ok=True)
    config = graph_config(tmp_path, 1)
    _, path = saved(config, tmp_path / "saved")
    before = folders(tmp_path)
    for limit, names in (
        (1_000, [".json"]),
        (6_000, [".ids"]),
        (9_000, [".ids", "rows.i32", "codes.arrow", "parquet"]),
    ):
        ended = forked("tests.etl.run.test_full_disk:run_with_limit", path, limit)
        assert ended.code == 1
        error = ended.stderr.strip().splitlines()[-1]
        assert "DiskFullError" in error, ended.stderr
        assert "File too large" in error
        assert any(name in error for name in names)
        assert folders(tmp_path) == before
    job.run(config, near_client)
    assert not hidden(tmp_path)
    assert folders(tmp_path) == new_output
