"""The process in a driver's container."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill.cluster.driver import Reader

KILLED = "import os, sys; print('out'); print('err', file=sys.stderr, flush=True); os.abort()"


@pytest.mark.slow
def test_a_command_that_a_signal_ends_is_told_to_the_client(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "conf").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "graphmill.cluster.driver", str(tmp_path / "logs"), "-c", KILLED],
        cwd=tmp_path,
        env=os.environ
        | {"CONTAINER_ID": "container_17_0001_01_000002", "HADOOP_CONF_DIR": str(tmp_path / "conf")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGABRT
    reader = Reader(str(tmp_path / "logs" / "application_17_0001"))
    assert reader.exit_code() == done.returncode
    reader.show()
    output, errors = capfd.readouterr()
    assert output == done.stdout == "out\n"
    assert errors.startswith(f"{done.stderr}error: SIGABRT has ended the driver")
