"""The lock of an output: one holder, takeover from the dead and the silent, and a loser that notices."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from graphmill import lock, storage
from graphmill.errors import LockedError

REPOSITORY = Path(__file__).parents[2]

HOLDER = """
import sys, time
from graphmill import lock
with lock.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder on local disk, and one on HDFS."""
    return str(tmp_path) if request.param == "local" else request.getfixturevalue("hdfs_uri")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Locks that look as if another machine had made them."""
    monkeypatch.setattr(lock, "_machine", iter(f"machine {number}" for number in range(1000)).__next__)
    return


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lock of an output looks as if it had not been touched for ages; those after it do not."""
    read = lock._read

    def aged(uri: str) -> lock._Link | None:
        link = read(uri)
        return replace(link, mtime_ns=0) if link and uri.endswith(lock.NAME) else link

    monkeypatch.setattr(lock, "_read", aged)


def test_of_many_one_gets_it(output: str) -> None:
    barrier = threading.Barrier(8)

    def compete() -> str | None:
        own = lock._Lock(f"{output}/{lock.NAME}")
        barrier.wait()
        try:
            own.acquire()
        except LockedError:
            return None
        return own._text

    with ThreadPoolExecutor(8) as pool:
        winners = [each.result() for each in [pool.submit(compete) for _ in range(8)]]
    (winner,) = [each for each in winners if each]
    assert storage.read_text(f"{output}/{lock.NAME}") == winner


def test_what_killed_runs_left_is_removed(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = storage.temporary_sibling(f"{output}/{lock.NAME}")
    storage.write_text(leftover, "")
    with lock.held(output):
        assert storage.exists(leftover)  # it may be of somebody who tries just now
    monkeypatch.setattr(lock, "EXPIRY_S", 0.0)
    with lock.held(output):
        assert not storage.exists(leftover)


def test_it_is_free_again_afterwards(output: str) -> None:
    for _ in range(2):
        with (
            lock.held(output),
            pytest.raises(LockedError, match=r"process \d+ on .* has it since .* try again later"),
            lock.held(output),
        ):
            pass
    assert storage.list_hidden(output) == []
    assert LockedError.exit_code == 75


def test_a_killed_owner_of_this_machine_is_seen_to_be_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid}"), lock.held(str(tmp_path)):
            pass
        holder.send_signal(signal.SIGKILL)
    with lock.held(str(tmp_path)):
        pass


@pytest.mark.usefixtures("elsewhere")
def test_a_silent_owner_elsewhere_is_waited_for(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = lock._Lock(f"{output}/{lock.NAME}")
    silent.acquire()
    with pytest.raises(LockedError, match="showed life"), lock.held(output):
        pass
    with ExitStack() as stack:
        with monkeypatch.context() as patience:
            patience.setattr(lock, "EXPIRY_S", -1.0)
            stack.enter_context(lock.held(output))
        silent.release()  # what it wakes up to is not its own to delete
        assert not silent.is_ours()
        with pytest.raises(LockedError), lock.held(output):
            pass
    assert storage.list_hidden(output) == []


@pytest.mark.usefixtures("elsewhere", "long_ago")
def test_of_many_one_takes_it_over(output: str) -> None:
    lock._Lock(f"{output}/{lock.NAME}").acquire()
    barrier = threading.Barrier(4)

    def compete() -> bool:
        barrier.wait()
        try:
            lock._Lock(f"{output}/{lock.NAME}").acquire()
        except LockedError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = [each.result() for each in [pool.submit(compete) for _ in range(4)]]
    assert won.count(True) == 1


@pytest.mark.usefixtures("elsewhere")
def test_an_owner_that_shows_life_keeps_it(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    with lock.held(output):
        begun = storage.status(f"{output}/{lock.NAME}")
        assert begun is not None
        deadline = time.monotonic() + 60
        while storage.status(f"{output}/{lock.NAME}") in (begun, None):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(LockedError), lock.held(output):
            pass


def test_who_has_lost_it_ends(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    successor = lock._Lock(f"{output}/{lock.NAME}")
    with ExitStack() as stack, pytest.raises(LockedError, match="lost"):
        stack.enter_context(lock.held(output))
        with monkeypatch.context() as patience:
            patience.setattr(lock, "EXPIRY_S", -1.0)
            successor.acquire()
        time.sleep(30)
    assert successor.is_ours()
