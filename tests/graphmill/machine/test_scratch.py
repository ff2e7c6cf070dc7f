"""Tables that the processes of a machine share, and folders that other machines see."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphmill.checkpoints.whole_tables import mapped_array
from graphmill.cli.in_a_container import is_of_one_machine
from graphmill.errors import DiskFullError, StorageError
from graphmill.machine import scratch
from graphmill.machine.threads import Threads
from tests.processes import full_disk


def test_work_is_shared_out_and_done_once(tmp_path: Path) -> None:
    made: list[str] = []

    def make(name: str) -> None:
        time.sleep(0.01)
        made.append(name)

    names = [str(number) for number in range(20)]
    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(scratch.make_together, str(tmp_path), names, make) for _ in range(3)]
    assert not any(each.result() for each in done)
    assert sorted(made) == sorted(names)


def test_failed_work_is_done_by_the_next_process(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        raise StorageError("full")

    with pytest.raises(StorageError):
        scratch.make_together(str(tmp_path), ["a"], fail)
    made: list[str] = []
    scratch.make_together(str(tmp_path), ["a"], made.append)
    assert made == ["a"]


def test_what_is_allotted_is_nobody_else_s(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        begun = list(pool.map(lambda _: scratch.allot(str(tmp_path / "taken"), [1, 3]), range(500)))
    assert sorted(begun) == [[number, 3 * number] for number in range(500)]


def test_an_error_leaves_no_task_for_other_threads() -> None:
    tasks = iter([lambda: 1 // 0, lambda: 1])
    with pytest.raises(ZeroDivisionError):
        Threads(1, print).run(tasks)
    assert not list(tasks)


def test_reserve_reports_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot reserve scratch space"):
        scratch.reserve(str(tmp_path / "huge"), 1 << 60)
    with pytest.raises(DiskFullError, match="cannot reserve temporary space"), full_disk(100_000):
        mapped_array((1 << 20,), np.float32)


def test_memory_and_links_to_it_are_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    assert is_of_one_machine("/dev/shm/not/there")
    assert is_of_one_machine(str(link / "file"))
    assert not is_of_one_machine("/proc/self")  # of a type that is no disk
    mounts = {"/": "nfs", "/a\\040b": "xfs", "/a\\040b/c": "nfs4", "/a\\040b/c/d": "ext4"}
    text = "".join(f"9 1 0:9 / {place} rw - {kind} x rw\n" for place, kind in reversed(mounts.items()))
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert [is_of_one_machine(path) for path in ("/x", "/a b/x", "/a b/c", "/a b/c/d/e")] == [False, True] * 2
