"""A run removes what multiprocessing made for killed runs; what others have stays."""

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from graphmill.machine import leftovers, scratch
from tests.graphmill.cli.test_submit import DASK_SUBMIT, GRAPH

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux's /dev/shm")


def noted(root: Path) -> list[Path]:
    lines = [line for path in root.glob("graphmill-run-*/*/made") for line in path.read_text().splitlines()]
    return [Path(line.partition(" ")[2]) for line in lines]


def kinds(paths: list[Path]) -> set[str]:
    return {path.name.partition("-")[0] for path in paths}


@pytest.mark.slow
def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    conf = GRAPH + "etl: {tables: [{path: t.csv, lhs: 0, rhs: 1, relation: r}]}}"
    (tmp_path / "c.yaml").write_text(conf)
    command = [DASK_SUBMIT, "--master", "local[1]", "etl.py", "--conf", "c.yaml"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    others = multiprocessing.get_context("spawn").Semaphore()
    (tmp_path / "t" / "pymp-of-others").mkdir()

    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 60
        while kinds(noted(tmp_path / "t")) != {"sem.mp", "pymp"} and time.monotonic() < deadline:
            time.sleep(0.001)
        left = noted(tmp_path / "t")
        os.killpg(process.pid, signal.SIGKILL)
    assert kinds(left) == {"sem.mp", "pymp"}
    assert all(path.exists() for path in left), "with its tracker killed nobody clears away"
    assert len([path for path in left if path.name.startswith("sem")]) == 6, "of the two queues of a nanny"

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [path for path in left if path.exists()]
    found = {path.name for path in (tmp_path / "t").iterdir()} - {"dask-scratch-space"}
    assert found == {"pymp-of-others"}
    assert others.acquire(timeout=1)
    assert Path("/dev/shm/sem." + others._semlock.name.lstrip("/")).exists()  # type: ignore[attr-defined]


def test_only_what_is_still_the_same_is_removed(tmp_path: Path) -> None:
    """The notes of a killed run name things that somebody else has by now, and things that no run makes."""
    folder = tmp_path / f"graphmill-run-{os.getuid()}" / "dead"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / ".alive").touch()
    same, other, precious = (tmp_path / name for name in ("pymp-same", "pymp-other", "precious"))
    for path in (same, other, precious):
        path.mkdir()
    link = tmp_path / "pymp-link"
    link.symlink_to(precious)
    lines = [f"{path.lstat().st_ino} {path}" for path in (same, precious, link)]
    lines += [f"{other.lstat().st_ino + 1} {other}", "no line", f"1 {tmp_path}/pymp-gone"]
    (folder / "made").write_text("\n".join(lines))
    root, name = str(tmp_path), "graphmill-run"
    scratch.use_folder(root, name, "live", before_removal=leftovers._remove_noted)
    try:
        assert not same.exists()
        assert other.exists()
        assert precious.exists()
        assert not folder.exists()
    finally:
        scratch.remove_folder(root, name, "live")


def test_what_a_living_run_has_noted_stays(tmp_path: Path) -> None:
    root, name = str(tmp_path), "graphmill-run"
    (tmp_path / "pymp-living").mkdir()
    living = Path(scratch.use_folder(root, name, "one"))
    (living / "made").write_text(f"{(tmp_path / 'pymp-living').stat().st_ino} {tmp_path / 'pymp-living'}\n")
    try:
        scratch.use_folder(root, name, "two", before_removal=leftovers._remove_noted)
        assert (tmp_path / "pymp-living").exists()
        assert living.exists()
    finally:
        scratch.remove_folder(root, name, "one")
        scratch.remove_folder(root, name, "two")
