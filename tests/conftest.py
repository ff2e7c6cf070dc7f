"""Fixtures of the whole suite."""

import logging
import os
from collections.abc import Iterator
from contextlib import closing

import dask
import distributed
import hypothesis
import numpy as np
import pytest

from graphmill import cluster
from graphmill.cli import main, remap
from graphmill.cluster.settings import QUIET
from graphmill.display import terminal
from tests.commands import Command, on_cluster, submit
from tests.finished import finished_run, once, triples, wheel
from tests.forked import Forks
from tests.hadoop.fixture import hdfs, hdfs_uri
from tests.workers import cluster_of

__all__ = ["finished_run", "hdfs", "hdfs_uri", "once", "submit", "triples", "wheel"]

# The first example of a test may compile, start or import something; slow machines run the suite too.
hypothesis.settings.register_profile(
    "suite",
    max_examples=50,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,  # examples that share a folder overwrite its files
    ],
)
hypothesis.settings.register_profile("nightly", hypothesis.settings.get_profile("suite"), max_examples=2500)
hypothesis.settings.load_profile("suite")

dask.config.set(QUIET)  # for clusters in this process too

OF_NANNIES = {*dask.config.get("distributed.nanny.pre-spawn-environ"), *cluster.ENVIRONMENT}
STARTING = {"client", "forked"}
OF_THEIR_FILE = {"available", "secured"}  # fixtures that start another HDFS than `hdfs`
AT_START = {name: os.environ.get(name) for name in OF_NANNIES}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a file to one process of pytest-xdist, for its fixtures; and all of one HDFS, which starts once.

    What takes longest goes first, so that the processes end at about the same time. What asks for processes
    is slow.
    """
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    groups = {}
    for item in items:
        fixtures = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
        if STARTING & fixtures:
            item.add_marker(pytest.mark.slow)
        is_shared = "hdfs" in marks[item] and not OF_THEIR_FILE & fixtures
        groups[item] = "hdfs" if is_shared else item.location[0]
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    slow = {groups[item] for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: ("yarn" not in marks[item], "hdfs" not in marks[item], groups[item] not in slow)
    )


@pytest.fixture(autouse=True)
def log_as_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """Undo changes of logging and of the terminal that an earlier test made for the whole process."""
    log = logging.getLogger("graphmill")
    log.handlers, log.propagate, log.disabled = [], True, False
    log.setLevel(logging.NOTSET)  # not by assignment: loggers remember what they let through
    # A LocalCluster raises the level of every handler of distributed's log, pytest's own among them.
    caplog.handler.setLevel(logging.NOTSET)
    vars(terminal.options).update(vars(terminal.TerminalOptions()))


@pytest.fixture(autouse=True)
def environment_as_at_start() -> Iterator[None]:
    """Undo what Dask's nannies set in this process: processes inherit it, and later nannies prefer it."""

    def restore() -> None:
        for name, value in AT_START.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    restore()
    yield
    restore()


@pytest.fixture(scope="session")
def client() -> Iterator[distributed.Client]:
    """A Dask cluster as the commands start it: two worker processes of one thread."""
    with cluster_of(2) as cluster, distributed.Client(cluster) as connected:
        yield connected


@pytest.fixture(scope="session")
def near_client() -> Iterator[distributed.Client]:
    """A Dask cluster in this very process: quick to ask, and open to monkeypatching."""
    with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=":0") as client:
        yield client


@pytest.fixture(scope="session")
def forked() -> Iterator[Forks]:
    """`forked("graphmill", ...)`: a command in a process of its own, which may be killed."""
    with closing(Forks()) as forks:
        yield forks


@pytest.fixture
def graphmill_command(near_client: distributed.Client, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`graphmill ARGS` in this process, workers too; its exit code."""
    return on_cluster(near_client, monkeypatch, main.command)


@pytest.fixture
def cli(near_client: distributed.Client, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`python -m remap ARGS` in this process, workers too; its exit code."""
    return on_cluster(near_client, monkeypatch, remap.command)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20260101)
