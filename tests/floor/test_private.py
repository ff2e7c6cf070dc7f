"""Folders for keys: for one user, and not for ever."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from graphmill.cluster.private import private_folder

HOLD = """
import sys
from graphmill.cluster.private import private_folder
with private_folder("graphmill-test-") as folder:
    (folder / "keys.pem").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    killed, alive = (Path(run.stdout.readline().strip()) for run in runs if run.stdout)
    runs[0].kill()
    runs[0].communicate()
    with private_folder("graphmill-test-"):
        assert killed.exists()  # as it might be of a run that has not locked it yet
    for folder in (killed, alive):
        os.utime(folder, (0, 0))
    with private_folder("graphmill-test-") as own:
        assert own.stat().st_mode & 0o777 == 0o700
        assert not killed.exists()
        assert (alive / "keys.pem").exists()
    runs[1].communicate()
    assert not list(tmp_path.iterdir())
