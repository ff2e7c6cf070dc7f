"""Start and use of Dask clusters, retries of tasks, lost workers."""

import errno
import multiprocessing
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, Future, LocalCluster

from graphmill import cluster, errors, storage
from graphmill.cluster import connecting, dashboard, described_workers, tasks
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import progress
from graphmill.storage import hdfs
from tests.logged import messages_of
from tests.waiting import wait_until
from tests.workers import FORKING, die_once, forking


def square(number: int) -> int:
    return number * number


def refuse_or_write(place: str, number: int) -> None:
    """The first task fails while another is in the middle of something."""
    if number == 0:
        while not storage.exists(f"{place}/1"):
            time.sleep(0.01)
        raise errors.FormatError("the first is bad")
    storage.write_text(f"{place}/{number}", "")
    time.sleep(0.5)
    storage.write_text(f"{place}/{number}", "done")


def count_up(steps: int) -> int:
    for number in range(steps):
        time.sleep(0.05)
        progress.report("counting", number + 1, steps, "steps", loss="0.5")
    return steps


def fail_at_first(path: str, num_failures: int, error: type[errors.GraphMillError]) -> int:
    """Number of attempts it took."""
    with Path(path).open("a") as attempts:
        attempts.write("x")
        attempt = attempts.tell()
    if attempt <= num_failures:
        raise error(f"attempt {attempt} of {num_failures} failed")
    return attempt


def test_after_an_error_nothing_runs_any_more(client: Client, tmp_path: Path) -> None:
    arguments = [(str(tmp_path), number) for number in range(5)]
    with pytest.raises(errors.FormatError, match="the first is bad"):
        cluster.run_tasks(client, refuse_or_write, arguments, description="writing")
    begun = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "1" in begun
    assert set(begun.values()) == {"done"}
    time.sleep(0.6)
    assert {path.name for path in tmp_path.iterdir()} == set(begun)


def test_results_come_in_order(client: Client) -> None:
    results = cluster.run_tasks(client, square, [(n,) for n in range(50)], description="squares")
    assert results == [n * n for n in range(50)]
    assert cluster.run_tasks(client, square, [], description="nothing") == []


def test_a_task_that_storage_failed_is_run_again(client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tasks, "RETRY_DELAYS_S", (0.0, 0.1, 0.1))
    seen: list[progress.Tick] = []
    arguments = [(str(tmp_path / f"task-{number}"), number, errors.StorageError) for number in range(4)]
    with progress.shown_by(SimpleNamespace(show=seen.append)), caplog.at_level("WARNING", "graphmill"):
        results = cluster.run_tasks(client, fail_at_first, arguments, description="reading")
    assert results == [1, 2, 3, 4]
    assert [tick.done for tick in seen] == [0, 1, 2, 3, 4]
    told = messages_of(caplog)
    assert len(told) == 6
    assert "reading: trying again in 0.1 s: attempt 2 of 3 failed" in told


def test_a_task_with_bad_input_is_not_run_again_and_one_that_storage_fails_for_good_is_given_up(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RETRY_DELAYS_S", (0.0, 0.0))
    of_input = (errors.FormatError, errors.RawTableError, errors.ConfigError, errors.NotFoundError)
    for error in (*of_input, errors.DiskFullError, errors.StorageError):
        message = f"attempt {3 if error is errors.StorageError else 1} of 9 failed"
        with pytest.raises(error, match=message):
            arguments = (str(tmp_path / error.__name__), 9, error)
            cluster.run_tasks(client, fail_at_first, [arguments], description="reading")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_killed_worker_costs_its_tasks_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    losses = cluster.Losses()
    forking()
    with (
        caplog.at_level("INFO", "graphmill"),
        dask.config.set(FORKING | {"distributed.scheduler.allowed-failures": 1}),
        cluster.connect("local[2]", ClusterConfig()) as client,
        losses.counted(client),
    ):
        caplog.handler.setLevel(0)  # the cluster has silenced all handlers of distributed's log
        died = str(tmp_path / "died")
        assert cluster.run_task(client, die_once, died, square, 3, description="dying") == 9
        assert losses.num_workers == 1
        with pytest.raises(errors.ClusterError, match="dying: the task's worker died 2 times"):
            cluster.run_task(client, signal.raise_signal, signal.SIGKILL, description="dying")
    assert losses.num_workers == 3, "those that close in the end are not lost"
    assert len(re.findall(r"lost the worker tls://127\.0\.0\.1:\d+, number \d of this run", caplog.text)) == 3
    assert "replaces a lost one" in caplog.text


def test_a_worker_that_comes_replaces_a_lost_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "graphmill")
    losses = cluster.Losses()
    for action, expected in (
        ("add", None),
        ("remove", False),
        ("remove", True),
        ("add", None),
        ("add", None),
    ):
        losses._count((0.0, {"action": f"{action}-worker", "worker": "w", "expected": expected}))
    assert (losses.num_workers, caplog.text.count("replaces a lost one")) == (1, 1)


def test_progress_of_tasks_is_shown_here(client: Client) -> None:
    """Long tasks side by side have a bar each."""
    seen: list[progress.Tick] = []
    with progress.shown_by(SimpleNamespace(show=seen.append)), cluster.shown_by_worker(client):
        assert cluster.run_tasks(client, count_up, [(10,), (10,)], description="all") == [10, 10]
        both = {"counting, worker 1", "counting, worker 2"}
        wait_until(lambda: both <= {each.description for each in seen})
    of_workers = [each for each in seen if each.description != "all"]
    assert {each.total for each in of_workers} == {10}
    assert of_workers[-1].fields == {"loss": "0.5"}


def test_a_cancelled_task_stops_by_itself(client: Client) -> None:
    def is_at_work() -> bool:
        return any(client.run(lambda dask_worker: len(dask_worker.state.executing)).values())

    future = client.submit(count_up, 100_000, pure=False)
    wait_until(is_at_work)
    future.cancel()
    wait_until(lambda: not is_at_work())


@pytest.mark.slow
@pytest.mark.parametrize("variable", [None, "native"])
def test_the_environment_reaches_every_worker(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """The variable of the HDFS driver goes before the setting."""
    for name in (hdfs.DRIVER_VARIABLE, *cluster.ENVIRONMENT):  # clusters of this process set them
        monkeypatch.setenv(name, variable or "")  # monkeypatch restores the value of before after the test
        if name != hdfs.DRIVER_VARIABLE or variable is None:
            monkeypatch.delenv(name)
    with cluster.connect("local[1]", ClusterConfig(hdfs_driver="libhdfs")) as client:
        assert client.submit(os.getenv, hdfs.DRIVER_VARIABLE).result() == (variable or "libhdfs")
        for name, value in cluster.ENVIRONMENT.items():
            assert client.submit(os.getenv, name).result() == value
    assert os.getenv(hdfs.DRIVER_VARIABLE) == variable


@pytest.mark.slow
def test_workers_have_no_profiler(local_run: Client) -> None:
    """It may stop a worker forever (Python 3.11)."""
    assert local_run.submit(dask.config.get, "distributed.worker.profile.enabled").result() is False


def works() -> None:
    while True:  # until it is cancelled
        progress.report("training", 1, 4, "edges", epoch="2/3", bucket="0,1")
        time.sleep(0.05)


@pytest.mark.slow
def test_the_dashboard_says_what_a_worker_works_on(local_run: Client) -> None:
    assert metric_of(local_run) == ""
    task = local_run.submit(works)
    wait_until(lambda: metric_of(local_run) == "training, epoch 2/3, bucket 0,1, done 25 %")
    local_run.cancel([task])


def metric_of(client: Client) -> Any:
    (worker,) = described_workers(client).values()
    return worker["metrics"].get("working on", "")


def test_a_running_cluster_is_joined_and_left_running(client: Client) -> None:
    address = client.scheduler_info()["address"]
    with cluster.connect(address, ClusterConfig()) as joined:
        assert joined.submit(square, 3).result() == 9
    assert client.submit(square, 4).result() == 16


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_scheduler_answers_at_the_address(is_stopped: bool) -> None:
    """The system takes connections for a process that is stopped (SIGSTOP)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if not is_stopped:
            listening.close()
        no_answer = pytest.raises(errors.NoClusterError, match=r"answer: .*; nothing was changed: try again")
        with no_answer as error:
            cluster.connect(f"tcp://127.0.0.1:{port}", ClusterConfig(connect_timeout_s=1)).__enter__()
    assert error.value.exit_code == 69


@pytest.mark.parametrize("reason", ["", " Cannot assign requested address"])
def test_a_scheduler_that_does_not_start_says_why_once(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        try:
            raise OSError("Cannot assign requested address")
        except OSError as error:
            raise RuntimeError(f"Scheduler failed to start.{reason}") from error

    monkeypatch.setitem(connecting.STARTERS, "yarn", start)
    why = (
        r"--master yarn: the cluster does not answer: Scheduler failed to start\. Cannot assign \w+ address; "
    )
    with pytest.raises(errors.ClusterError, match=why), cluster.connect("yarn", ClusterConfig(tls="off")):
        pass


def test_workers_that_cannot_share_semaphores_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may lack /dev/shm; Dask would wait for its workers without end."""

    def refuse() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(multiprocessing, "Lock", refuse)
    why = r"--master local\[1\]: worker processes need a /dev/shm to write to: .*Read-only"
    with pytest.raises(errors.NoClusterError, match=why), cluster.connect("local[1]", ClusterConfig()):
        pass


def test_a_dashboard_where_this_machine_cannot_listen_is_a_wrong_option() -> None:
    for address in ("no-such-host.invalid:0", "192.0.2.1:0", "::1:0", ":65536"):
        message = f"cluster.dashboard_address: .* found '{address}'"
        with pytest.raises(errors.ConfigError, match=message):
            cluster.connect("local[1]", ClusterConfig(dashboard_address=address)).__enter__()


@pytest.mark.slow
def test_tasks_do_not_wait_for_ever_where_all_workers_are_lost() -> None:
    gone = "counting: all workers died, and none has come back within 1 s"
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "1s"}),
        LocalCluster(n_workers=0, dashboard_address=":0") as lost,
        Client(lost) as client,
        pytest.raises(errors.ClusterError, match=gone),
    ):
        cluster.run_tasks(client, square, [(1,), (2,)], description="counting")


@pytest.mark.slow
def test_tasks_do_not_wait_for_ever_where_the_memory_of_all_workers_is_full() -> None:
    memory = {f"distributed.worker.memory.{key}": False for key in ("target", "spill", "terminate")}
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "0.1s"}),
        dask.config.set(memory | {"distributed.worker.memory.pause": 1e-6}),
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as full,
        Client(full) as client,
    ):
        wait_until(lambda: not full.scheduler.running)
        full_memory = r"no worker has taken a task for 0\.1 s.*cluster.worker_memory"
        with pytest.raises(errors.ClusterError, match=full_memory):
            cluster.run_tasks(client, square, [(1,)], description="counting")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("has_closed", [False, True])
def test_a_lost_scheduler_is_a_cluster_error(forked, monkeypatch, has_closed):
    """Whether or not the client has given up and closed by then."""
    program = "from distributed.cli.dask_scheduler import main; main()"
    words = ("--port=0", "--no-dashboard", "--host=127.0.0.1")
    scheduler = forked.start("python", "-c", program, *words)
    place = re.compile(r"tcp://127\.0\.0\.1:\d+")
    wait_until(lambda: bool(place.search(scheduler.read("stderr"))))
    (address,) = {*place.findall(scheduler.read("stderr"))}
    with Client(address, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        assert dashboard.address(client, is_here=True) is None
        client._timeout = 1  # it need not look long for a scheduler that is gone
        if has_closed:
            result_of = Future.result

            def late(future: Future) -> Any:
                wait_until(lambda: client.status == "closed")
                return result_of(future)

            monkeypatch.setattr(Future, "result", late)
        asked = pool.submit(cluster.run_tasks, client, time.sleep, [(60,)], description="resting")
        wait_until(lambda: bool(client.futures))
        message = "resting: the cluster went away: Client lost the connec"
        away = pytest.raises(errors.ClusterError, match=message)
        with away, cluster.Losses().counted(client):
            scheduler.send(signal.SIGKILL)
            asked.result()
    scheduler.wait(-signal.SIGKILL)
