"""Runs with earlier edges that are stopped or killed go on from there, on HDFS too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import distributed
import pytest

from etl import job
from graphmill import storage
from tests import REPOSITORY
from tests.etl.graphs import as_anew, config_of, files_under
from tests.etl.run.test_delta import check_day, config_for, write_window
from tests.etl.run.test_go_on import figures_of, finished_steps, stopped_before
from tests.etl.run.test_hdfs import files_at
from tests.hadoop.cluster import MiniHdfs
from tests.processes import DEADLINE_S, running
from tests.waiting import wait_until

SHAPE = {"drops": True, "weights": True, "splits": True, "chunk_rows": 40}

# Runs the delta of day 1 in one process, and ends it like a power cut at the given renaming.
KILLED_AT_A_RENAME = """
import os, signal, sys
from pathlib import Path
import distributed
from etl import job
from graphmill import storage
from graphmill.storage import fs
from tests.etl.run.test_delta import config_for
from tests.etl.run.test_delta_faults import SHAPE
really_move, left = fs.move, [int(sys.argv[2])]
def move(source, target):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    really_move(source, target)
if __name__ == "__main__":
    storage.move = fs.move = move
    with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=":0") as client:
        job.run(config_for(Path(sys.argv[1]), 1, "out1", SHAPE, delta=True), client)
"""

ON_TWO_WORKERS = """
import sys
from pathlib import Path
import distributed
from etl import job
from tests.etl.run.test_delta import config_for
from tests.etl.run.test_delta_faults import SHAPE
from tests.held import hold
if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client:
            client.run(hold, sys.argv[2], 1, sys.argv[3])
            job.run(config_for(Path(sys.argv[1]), 1, "out1", SHAPE, delta=True), client)
"""


def two_days(root: Path, client: distributed.Client) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Run the first day, and the second anew; return the files of both. Its tables are there then."""
    write_window(root, range(3))
    check_day(root, 0, SHAPE, client)
    write_window(root, range(1, 4))
    job.run(config_for(root, 1, "anew1", SHAPE, delta=False), client)
    return files_under(root / "out0"), files_under(root / "anew1")


@pytest.mark.parametrize("step", ["index", "translate", "merge"])
def test_goes_on_after_the_last_step(near_client: distributed.Client, tmp_path: Path, step: str) -> None:
    first, second = two_days(tmp_path, near_client)
    config = config_for(tmp_path, 1, "out1", SHAPE, delta=True)
    stopped_before(step, near_client, config)
    figures, num_tasks = figures_of(config, near_client)
    assert "etl: encode" not in num_tasks
    assert as_anew(files_under(tmp_path / "out1")) == second
    assert figures["delta"]["files_added"] == 1
    assert files_under(tmp_path / "out0") == first


@pytest.mark.slow
@pytest.mark.parametrize("rename", [1, 3, 8, 15, 25, 40, 50, 55, 60])
def test_killed_at_a_rename(near_client: distributed.Client, tmp_path: Path, rename: int) -> None:
    first, second = two_days(tmp_path, near_client)
    command = [sys.executable, "-c", KILLED_AT_A_RENAME, str(tmp_path), str(rename)]
    killed = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
    done = finished_steps(tmp_path)
    _, num_tasks = figures_of(config_for(tmp_path, 1, "out1", SHAPE, delta=True), near_client)
    if "merge" not in done:
        assert ("etl: encode" in num_tasks) == ("encode" not in done)
    assert as_anew(files_under(tmp_path / "out1")) == second
    assert files_under(tmp_path / "out0") == first


@pytest.mark.slow
@pytest.mark.parametrize("file", ["*.codes.arrow", "edges_*.h5"])
def test_killed_with_its_workers(near_client: distributed.Client, tmp_path: Path, file: str) -> None:
    first, second = two_days(tmp_path, near_client)
    sign = tmp_path / "held"
    command = [sys.executable, "-c", ON_TWO_WORKERS, tmp_path, file, sign]
    with running(command, tmp_path / "stderr.txt", cwd=REPOSITORY) as process:
        wait_until(sign.exists, DEADLINE_S)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    job.run(config_for(tmp_path, 1, "out1", SHAPE, delta=True), near_client)
    assert as_anew(files_under(tmp_path / "out1")) == second
    assert files_under(tmp_path / "out0") == first


@pytest.mark.hdfs
@pytest.mark.slow
def test_on_hdfs(hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path) -> None:
    """The same bytes as anew; a damaged bucket of the earlier run is refused, and nothing is lost."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        write_window(tmp_path, range(3))
        for path in sorted((tmp_path / "raw/first").glob("*.parquet")):
            with storage.atomic_output(f"{hdfs_uri}/raw/{path.name}") as stream:
                stream.write(path.read_bytes())

        def run(name: str, days: range, before: str | None, *, delta: bool) -> dict[str, object]:
            etl = {"previous_entity_path": f"{hdfs_uri}/{before}/entities"} if before else {}
            if delta:
                etl["previous_edge_path"] = f"{hdfs_uri}/{before}/edges"
            config = config_of(
                f"{hdfs_uri}/{name}",
                [
                    {"path": [f"day{day}.parquet" for day in days], "lhs": "l", "rhs": "t"}
                    | {"relation_column": "r", "weight": "w"}
                ],
                entities={"user": 2, "item": 2, "shop": 1},
                relations=[("saw", "user", "item"), ("bought", "user", "shop")],
                top={"input": f"{hdfs_uri}/raw"},
                holdout={"test": 0.2},
                **etl,
            )
            return job.run(config, client)

        run("first", range(2), None, delta=False)
        run("anew", range(1, 3), "first", delta=False)
        found = run("second", range(1, 3), "first", delta=True)
        assert isinstance(found["delta"], dict)
        assert (found["delta"]["files_kept"], found["delta"]["files_added"]) == (1, 1)
        second = files_at(f"{hdfs_uri}/second")
        assert as_anew(second) == files_at(f"{hdfs_uri}/anew")

        uri = f"{hdfs_uri}/first/edges/train/edges_1_1.h5"
        content = bytearray(storage.read_bytes(uri))
        content[-9] ^= 1
        with storage.atomic_output(uri) as stream:
            stream.write(bytes(content))
        with pytest.raises(Exception, match=r"edges_1_1\.h5: expected the checksum"):
            run("second", range(1, 3), "first", delta=True)
        assert files_at(f"{hdfs_uri}/second") == second
