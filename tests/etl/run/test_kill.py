"""SIGKILL at any point leaves the old output or the new one, and the next run succeeds."""

import json
import os
import signal
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from distributed import Client

from etl import job
from graphmill.cluster import tasks
from graphmill.config import Config
from tests import REPOSITORY
from tests.etl.graphs import config_of, files_under, run_saved, saved, write_parquet
from tests.etl.run.test_go_on import figures_of, finished_steps, hidden
from tests.forked import Forks, Kill
from tests.processes import DASK_SUBMIT, DEADLINE_S, full_disk, running
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def graph_config(root: Path, number: int, num_edges: int = 2_000) -> Config:
    """Graph `number`, its raw table written where it is not yet."""
    path = root / f"raw-{number}-{num_edges}.parquet"
    if not path.exists():
        ids = np.random.default_rng(number).integers(0, 3_000, (2, num_edges))
        write_parquet(path, 500, **{k: [f"{number}-{n}" for n in v] for k, v in zip("lt", ids, strict=True)})
    return config_of(root / "out", str(path), entities={"node": 2}, holdout={"test": 0.2}, chunk_rows=500)


@pytest.fixture(scope="module")
def old_run(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of graph 0, marked as finished, and the table of graph 1, which takes its place."""
    root = tmp_path_factory.mktemp("old")
    job.run(graph_config(root, 0), near_client)
    graph_config(root, 1)
    for folder in ("entities", "edges/train", "edges/test"):
        (root / "out" / folder / "_SUCCESS").write_text("{}")
    return root


@pytest.fixture
def old(old_run: Path, tmp_path: Path) -> Path:
    """A folder with the output of graph 0."""
    return copytree(old_run, tmp_path, dirs_exist_ok=True)


def folders(root: Path) -> dict[str, dict[str, bytes]]:
    """Content of each output folder that is there under its name."""
    named = [root / "out" / name for name in ("entities", "edges/train", "edges/test")]
    return {folder.name: files_under(folder) for folder in named if folder.exists()}


@pytest.fixture(scope="module")
def new_output(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run makes of graph 1."""
    root = tmp_path_factory.mktemp("undisturbed")
    job.run(graph_config(root, 1), near_client)
    return folders(root)


# The journal; the plan; 4 x 2 files of chunks; 2 x 2 of shards, 2 x 2 of partitions; 4 x sorted edges; 8
# buckets; each step's note in the journal; the manifest; 2 x raw files, 2 x edges by bucket; 3 x
# checksums; 3 x 2 commits.
RENAMES = [1, 2, 9, 11, 14, 20, 21, 24, *range(34, 49)]
FILES = ["*.codes.arrow", "*.rows.i32", "*.edges.i32", "edges_*.h5"]


@pytest.mark.parametrize(
    "kill",
    [*(Kill(rename - 1) for rename in RENAMES), *(Kill(0, file, is_after=True) for file in FILES)],
    ids=str,
)
def test_killed_at_a_rename_or_where_a_file_has_got_its_name(near_client, forked, kill, old, new_output):
    old_output = folders(old)
    forked(*saved(graph_config(old, 1), old / "saved"), kill=kill)
    left = folders(old)
    assert hidden(old)
    done = finished_steps(old)
    if left != old_output:  # the commits had begun: every folder is whole, and none passes for finished
        assert not kill.is_after
        for name, files in left.items():
            assert files in (new_output[name], without_marker(old_output[name]))
    _, num_tasks = figures_of(graph_config(old, 1), near_client)
    assert folders(old) == new_output
    assert not hidden(old)
    if left == old_output:  # else outputs have left the work, which what they were made from left before
        assert ("etl: encode" in num_tasks) == ("encode" not in done)
    if "merge" not in done:
        assert ("etl: translate" in num_tasks) == ("translate" not in done)


def without_marker(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != "_SUCCESS"}


def test_the_command_killed_with_its_workers_and_then_a_worker(old: Path, new_output: dict[str, Any]) -> None:
    """The next run goes on; Dask starts another worker in the place of one that was killed."""
    conf, sign, log = old / "conf.yaml", old / "held", old / "stderr.txt"
    settings = graph_config(old, 1).model_dump(mode="json", exclude_defaults=True)
    conf.write_text(yaml.safe_dump({"defaults": "pbg"} | settings))

    def unmarked() -> dict[str, dict[str, bytes]]:
        return {name: without_marker(files) for name, files in folders(old).items()}

    def held(file: str) -> Any:
        words = [sign, DASK_SUBMIT, "--master", "local[2]", "etl.py", "--conf", conf]
        return running([sys.executable, "-m", "tests.held", file, 1, *words], log, cwd=REPOSITORY)

    old_output = unmarked()
    with held("*.codes.arrow") as process:
        wait_until(sign.exists, DEADLINE_S)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert unmarked() == old_output
    assert hidden(old)
    sign.unlink()
    with held("edges_*.h5") as process:
        wait_until(sign.exists, DEADLINE_S)
        children = psutil.Process(process.pid).children()
        workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
        assert len(workers) == 2
        (one,) = (each for each in workers if each.pid == int(sign.read_text()))
        one.kill()
        assert process.wait(DEADLINE_S) == 0, log.read_text()
    assert json.loads((old / "out" / "run.json").read_text())["workers_lost"] == 1
    assert unmarked() == new_output
    assert not hidden(old)
    _, alive = psutil.wait_procs(children, DEADLINE_S)  # multiprocessing's tracker ends after the command
    assert not alive


def run_with_limit() -> None:
    """Run where no file may grow beyond the limit: for the writer it is the same as a full disk."""
    tasks.RETRY_DELAYS_S = ()
    with full_disk(int(sys.argv[2])):
        run_saved()


def test_a_full_disk(near_client: Client, forked: Forks, old: Path, new_output: dict[str, Any]) -> None:
    """A clear error, the old output is whole, and the next run continues."""
    config = graph_config(old, 1)
    _, path = saved(config, old / "saved")
    before = folders(old)
    for limit, *names in (
        (1_000, ".json"),
        (6_000, ".ids"),
        (9_000, ".ids", "rows.i32", "codes.arrow", "parquet"),
    ):
        ended = forked("tests.etl.run.test_kill:run_with_limit", path, limit, code=1)
        error = ended.stderr.strip().splitlines()[-1]
        assert "DiskFullError" in error, ended.stderr
        assert "File too large" in error
        assert any(name in error for name in names)
        assert folders(old) == before
    job.run(config, near_client)
    assert not hidden(old)
    assert folders(old) == new_output
