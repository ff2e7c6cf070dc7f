"""A cluster as a command starts it, for all tests that only look at it."""

from collections.abc import Iterator
from contextlib import ExitStack

import dask
import pytest
from distributed import Client

from graphmill import cluster
from graphmill.config.sections.cluster import ClusterConfig
from tests.workers import FORKING, forking


@pytest.fixture
def forking_workers() -> Iterator[None]:
    """Worker processes fork, which takes a tenth of the time; the environment that they get may be old."""
    forking()
    with dask.config.set(FORKING):
        yield


@pytest.fixture(scope="package")
def local_run() -> Iterator[Client]:
    """A worker process, whose profiler a configuration of Dask has turned on."""
    forking()
    with ExitStack() as stack:
        with dask.config.set(FORKING | {"distributed.worker.profile.enabled": True}):  # at its start alone
            client = stack.enter_context(cluster.connect("local[1]", ClusterConfig()))
        yield client
