"""The temporary folder of a run that was killed."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from graphmill.storage import run_folder
from tests.graphmill.cli.test_submit import DASK_SUBMIT, GRAPH, SLEEPER
from tests.waiting import found_in


@pytest.mark.slow
def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    conf = GRAPH + "etl: {tables: [{path: t.csv, lhs: 0, rhs: 1, relation: r}]}}"
    (tmp_path / "c.yaml").write_text(conf)
    command = [DASK_SUBMIT, "--master", "local[1]", "etl.py", "--conf", "c.yaml"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t" / "pymp-of-others").mkdir()
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))

    with subprocess.Popen(
        [DASK_SUBMIT, "--master", "local[1]", "sleeper.py"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"workers ")
        left = found_in(tmp_path / "t", f"{run_folder.NAME}-*/*")
        os.killpg(process.pid, signal.SIGKILL)
    assert left
    assert all(path.exists() for path in left), "with the whole group killed nobody clears away"

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {path.name for path in (tmp_path / "t").iterdir()} - {"dask-scratch-space"}
    assert found == {"pymp-of-others"}
