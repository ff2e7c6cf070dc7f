"""A run removes semaphores of killed runs, and no others."""

import os
import signal
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphmill.machine import private_folders, run_folder
from tests.graphmill.cli.test_submit import DASK_SUBMIT, GRAPH, SLEEPER
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux's /dev/shm")


def recorded(root: Path) -> list[Path]:
    folders = found_in(root, f"{run_folder.NAME}-*/*")
    return [path for folder in folders for path in recorded_in(folder)]


def recorded_in(folder: Path) -> list[Path]:
    return [Path(line.partition(" ")[2]) for line in (folder / "semaphores").read_text().splitlines()]


@pytest.fixture
def semaphores() -> Iterator[list[Path]]:
    """Two semaphores of another program."""
    made = [Path(f"/dev/shm/sem.mp-{uuid.uuid4().hex}") for _ in range(2)]
    for path in made:
        path.touch()
    yield made
    for path in made:
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path, semaphores: list[Path]) -> None:
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
        left = recorded(tmp_path / "t")
        os.killpg(process.pid, signal.SIGKILL)
    assert all(path.exists() for path in left), "with its tracker killed nobody clears away"
    assert len(left) == 6, "of the two queues of a nanny"

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [path for path in left if path.exists()]
    found = {path.name for path in (tmp_path / "t").iterdir()} - {"dask-scratch-space"}
    assert found == {"pymp-of-others"}
    assert all(path.exists() for path in semaphores)


def test_semaphores_of_others_that_vanish_leave_the_record_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "path", lambda: tmp_path)
    own = get_context("spawn").Lock()  # kept, with the file that a spawned process opens
    file = Path(f"/dev/shm/sem.{own._semlock.name.removeprefix('/')}")

    def is_recorded() -> bool:
        run_folder.record_semaphores()
        return file in recorded_in(tmp_path)

    wait_until(is_recorded, timeout_s=10)  # on a busy machine it has been missing at first
    before = recorded_in(tmp_path)
    listed = [Path("/dev/shm/sem.mp-gone"), *before]
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", SimpleNamespace(glob=lambda pattern: listed))
    run_folder.record_semaphores()
    assert recorded_in(tmp_path) == before


def test_only_a_semaphore_that_is_still_the_same_is_removed(tmp_path: Path, semaphores: list[Path]) -> None:
    """The record of a killed run names files that another program has by now, and files that no run makes."""
    folder = tmp_path / f"{run_folder.NAME}-{os.getuid()}" / "dead"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / ".alive").touch()
    same, other = semaphores
    precious = tmp_path / "precious"
    precious.touch()
    lines = [f"{path.stat().st_ino} {path}" for path in (same, precious)]
    lines += [f"{other.stat().st_ino + 1} {other}", "no line", "1 /dev/shm/sem.mp-gone"]
    lines += [f"{precious.stat().st_ino} /dev/shm/sem.mp-x/../../..{precious}"]
    (folder / "semaphores").write_text("\n".join(lines))
    root = str(tmp_path)
    private_folders.use_folder(root, run_folder.NAME, "live", before_removal=run_folder.remove_recorded)
    try:
        assert not same.exists()
        assert other.exists()
        assert precious.exists()
        assert not folder.exists()
    finally:
        private_folders.remove_folder(root, run_folder.NAME, "live")


def test_what_a_living_run_has_recorded_stays(tmp_path: Path, semaphores: list[Path]) -> None:
    root, name = str(tmp_path), run_folder.NAME
    kept = semaphores[0]
    living = Path(private_folders.use_folder(root, name, "one"))
    (living / "semaphores").write_text(f"{kept.stat().st_ino} {kept}\n")
    try:
        private_folders.use_folder(root, name, "two", before_removal=run_folder.remove_recorded)
        assert kept.exists()
        assert living.exists()
    finally:
        private_folders.remove_folder(root, name, "one")
        private_folders.remove_folder(root, name, "two")
