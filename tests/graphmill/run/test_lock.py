"""Locks of folders: one owner, takeover from killed and silent owners, detection of a lost lock."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphmill import storage
from graphmill.errors import FormatError, LockedError, StorageError
from graphmill.machine import processes
from graphmill.run import lock
from tests.processes import speaking
from tests.waiting import wait_until

NOBODY = 65534

HOLDER = """
import sys, time
from graphmill.run import lock
with lock.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def acquired(root: str) -> lock.Locks:
    """The lock of a folder, held without showing life."""
    locks = lock.Locks()
    locks.acquire([root], [])
    return locks


def is_held(locks: lock.Locks) -> bool:
    try:
        locks.claim.check()
    except LockedError:
        return False
    return True


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that look as if another machine had made them, and are watched for a moment only."""
    # Many threads ask at the same time, which a generator would refuse.
    monkeypatch.setattr(processes, "machine", map("machine {}".format, count()).__next__)
    monkeypatch.setattr(lock, "BEAT_S", 0.01)


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lock that is read looks as if it had not been touched for ages; later ones do not."""
    read = lock.read
    old: list[str] = []

    def aged(uri: str) -> lock.Link | None:
        link = read(uri)
        if link and link.text in (old or [link.text]):
            old.append(link.text)
            return replace(link, mtime_ns=0)
        return link

    monkeypatch.setattr(lock, "read", aged)


def race(root: str, num: int) -> lock.Locks:
    """Have threads acquire a lock at the same time; the one that gets it."""
    barrier = threading.Barrier(num)

    def compete() -> lock.Locks | None:
        barrier.wait()
        try:
            return acquired(root)
        except LockedError:
            return None

    with ThreadPoolExecutor(num) as pool:
        tried = [each.result() for each in [pool.submit(compete) for _ in range(num)]]
    (winner,) = [each for each in tried if each]
    return winner


def test_one_of_many_runs_gets_the_lock(root: str) -> None:
    winner = race(root, 8)
    assert storage.read_text(f"{root}/{lock.NAME}") == winner.claim.text


def test_what_killed_runs_left_is_removed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = storage.temporary_sibling(f"{root}/{lock.NAME}")
    storage.write_text(leftover, "")
    with lock.held(root):
        assert storage.exists(leftover)  # it may be of somebody who tries just now
    monkeypatch.setattr(lock, "EXPIRY_S", -1.0)  # two files of one moment may have the same time
    with lock.held(root):
        assert not storage.exists(leftover)


def test_a_lock_is_free_after_its_block(root: str) -> None:
    for _ in range(2):
        refused = pytest.raises(LockedError, match=r"process \d+ on .* has it since .* try again later")
        with lock.held(root), refused, lock.held(root):
            pass
    assert storage.list_hidden(root) == []
    assert LockedError.exit_code == 75


def test_a_process_of_this_machine_keeps_its_lock_until_it_is_gone(tmp_path: Path) -> None:
    with speaking(sys.executable, "-c", HOLDER, tmp_path) as (holder, told):
        assert told == "held"
        holder.send_signal(signal.SIGSTOP)
        for mtime_s in (0, 4_000_000_000):  # whatever age the lock seems to have
            os.utime(tmp_path / lock.NAME, (mtime_s, mtime_s))
            with pytest.raises(LockedError, match=f"process {holder.pid}"), lock.held(str(tmp_path)):
                pass
        holder.kill()
    with lock.held(str(tmp_path)):
        pass


def test_a_number_of_another_process_and_one_that_has_ended_are_not_alive() -> None:
    this = processes.identify()
    assert processes.is_alive(this)
    assert processes.is_alive(this | {"process_started": "1"}) is False
    with subprocess.Popen(["sleep", "100"]) as child:
        its = this | {"pid": child.pid, "process_started": processes._start_time(child.pid)}
        assert processes.is_alive(its)
        child.kill()
        wait_until(lambda: processes.is_alive(its) is False)  # though nobody has asked how it ended


@pytest.mark.usefixtures("elsewhere")
def test_a_silent_owner_elsewhere_is_waited_for(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = acquired(root)
    with pytest.raises(LockedError, match="is alive"), lock.held(root):
        pass
    with ExitStack() as stack:
        with monkeypatch.context() as patience:
            patience.setattr(lock, "EXPIRY_S", -1.0)
            stack.enter_context(lock.held(root))
        silent.release()  # what it wakes up to is not its own to delete
        assert not is_held(silent)
        with pytest.raises(LockedError), lock.held(root):
            pass
    assert storage.list_hidden(root) == []


@pytest.mark.usefixtures("elsewhere", "long_ago")
def test_one_of_many_runs_takes_a_lock_over(root: str) -> None:
    acquired(root)
    assert is_held(race(root, 4))
    assert [storage.name(uri) for uri in storage.list_hidden(root)] == [lock.NAME]


@pytest.mark.usefixtures("elsewhere")
def test_an_owner_that_shows_life_keeps_its_lock(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.held(root):
        wait_until(lambda: any(lock.LIFE in uri for uri in storage.list_hidden(root)))
        with pytest.raises(LockedError), lock.held(root):
            pass
    assert storage.list_hidden(root) == []


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_jump_of_the_storage_s_clock_takes_it_from_nobody_that_lives(tmp_path, monkeypatch, jump_s):
    now_ns = lock.now_ns
    monkeypatch.setattr(lock, "now_ns", lambda uri: now_ns(uri) + int(jump_s * 1e9))

    def life() -> list[int]:
        """When the owner showed life last."""
        entries = storage.list_dir(str(tmp_path), hidden=True)
        return [each.mtime_ns for each in entries if storage.name(each.uri).startswith(lock.LIFE)]

    def watch(watch_s: float) -> None:
        """However slow the machine is, the owner shows life while it is watched."""
        before = life()
        wait_until(lambda: life() not in ([], before))

    with lock.held(str(tmp_path)), monkeypatch.context() as patience:
        patience.setattr(lock, "time", SimpleNamespace(sleep=watch))
        with pytest.raises(LockedError, match="is alive"), lock.held(str(tmp_path)):
            pass
    acquired(str(tmp_path))  # shows no life
    with lock.held(str(tmp_path)):
        pass


@pytest.mark.usefixtures("elsewhere")
def test_a_run_that_lost_its_lock_ends(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = []
    begun = threading.Event()

    def succeed() -> lock.Locks:
        begun.wait()
        return acquired(root)

    with ThreadPoolExecutor(1) as pool:
        successor = pool.submit(succeed)
        with pytest.raises(LockedError, match="lost"), lock.held(root) as claim:
            claims.append(claim)
            monkeypatch.setattr(lock, "life_ns", lambda link: 0)
            begun.set()
            while True:
                time.sleep(0.1)
        assert is_held(successor.result())
        with pytest.raises(LockedError, match="lost"):
            pickle.loads(pickle.dumps(claims[0])).check()


def test_a_task_checks_the_locks_of_what_it_writes(tmp_path: Path) -> None:
    """Those of the client may be on a disk that the worker does not have."""
    checkpoint = f"{tmp_path}/other/checkpoint"
    with lock.held(str(tmp_path), whole=[checkpoint, f"{tmp_path}/entities"]) as claim:
        in_task = claim.of(checkpoint + "/")
        assert list(in_task.uris) == [f"{tmp_path}/other/.checkpoint{lock.NAME}"]
        in_task.check()
        Path(f"{tmp_path}/other/.checkpoint{lock.NAME}").unlink()
        for each in (in_task, claim):
            with pytest.raises(LockedError, match="lost, was its folder moved or deleted"):
                each.check()


def test_a_slow_rival_does_not_take_over_what_has_been_taken_over(tmp_path: Path) -> None:
    """It has seen the dead owner alone, and comes when a successor has made the lock its own."""
    root = str(tmp_path)
    dead, slow = lock.Locks(), lock.Locks()
    uri = f"{root}/{lock.NAME}"
    storage.write_text(uri, dead.claim.text)
    seen = lock.last_of(uri)
    storage.write_text(uri, acquired(f"{root}/another").claim.text)
    storage.create_text(lock.after(uri, seen), slow.claim.text)
    assert not slow._succeeds(uri, seen)
    assert [storage.name(each) for each in storage.list_hidden(root)] == [lock.NAME]


def test_what_is_no_lock_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=lambda _: None))  # nobody writes it meanwhile
    path = tmp_path / lock.NAME
    path.mkdir()
    with pytest.raises(FormatError, match=r"found a folder; .* delete "), lock.held(str(tmp_path)):
        pass
    path.rmdir()
    for content in ("", "{", "[1]", '{"pid": 1}', '{"token": "../../x"}', "[" * 100_000):
        path.write_text(content)
        os.utime(path, (0, 0))
        message = rf"{lock.NAME}: expected the lock .* delete "
        with pytest.raises(FormatError, match=message), lock.held(str(tmp_path)):
            pass
        assert path.read_text() == content


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder of a user who may not do everything, as whom the test runs."""
    user = os.geteuid()
    folder = Path(tempfile.mkdtemp())
    if user == 0:
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_lock_that_may_not_be_read_is_reported(own_folder: Path) -> None:
    (own_folder / lock.NAME).touch(0o000)
    with pytest.raises(StorageError, match=r"no permission.* delete "), lock.held(str(own_folder)):
        pass


def test_one_lock_that_cannot_be_had_gives_all_back(root: str) -> None:
    with lock.held(f"{root}/b"):
        with pytest.raises(LockedError):
            lock.held(f"{root}/a", f"{root}/b", whole=[f"{root}/0", f"{root}/c"]).__enter__()
        with lock.held(f"{root}/a", whole=[f"{root}/0", f"{root}/c"]):
            pass
    assert [uri for uri in storage.list_hidden(root, recursive=True) if "lock" in uri] == []


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ({"whole": ["x"]}, {"whole": ["x"]}, True),
        ({"whole": ["x"]}, {"whole": ["x/"]}, True),
        ({"whole": ["x"]}, {"whole": ["link/x"]}, True),
        ({"whole": ["x"]}, {"whole": ["x/y/z"]}, True),  # a folder that lies in one that is replaced
        ({"whole": ["x"]}, {"folders": ["x"]}, True),
        ({"whole": ["x"]}, {"folders": ["x/y"]}, True),
        ({"folders": ["out"]}, {"whole": ["out/x"]}, False),  # of a run that writes elsewhere
        ({"folders": ["out"], "whole": ["out/x"]}, {"folders": ["other"], "whole": ["out/x"]}, True),
        ({"whole": ["x"]}, {"whole": ["xx", "y"]}, False),
        ({"folders": ["out"]}, {"folders": ["out/in"]}, False),
    ],
)
def test_which_folders_exclude_each_other(tmp_path, first, second, is_refused):
    (tmp_path / "link").symlink_to(tmp_path)

    def held(side: dict[str, list[str]]) -> AbstractContextManager[lock.Claim]:
        paths = {key: [f"{tmp_path}/{name}" for name in names] for key, names in side.items()}
        return lock.held(*paths.get("folders", []), whole=paths.get("whole", []))

    for one, other in ((first, second), (second, first)):
        with held(one), pytest.raises(LockedError) if is_refused else nullcontext(), held(other):
            pass
    assert storage.list_hidden(str(tmp_path), recursive=True) == []


def test_below_a_folder_that_cannot_be_written_the_lock_lies_inside(own_folder: Path) -> None:
    mount = own_folder / "mount"
    mount.mkdir()
    own_folder.chmod(0o555)
    with lock.held(whole=[str(mount)]):
        assert (mount / lock.NAME).exists()
        with pytest.raises(LockedError), lock.held(whole=[str(mount)]):
            pass
