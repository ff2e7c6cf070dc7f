"""Processes that fork from one that has imported what tasks need: .1 s of CPU for each, not 2."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

import dask
import distributed
from distributed.utils import get_mp_context

from graphmill import storage

Result = TypeVar("Result")
FORKING = {
    "distributed.worker.multiprocessing-method": "forkserver",
    # Dask may lose a worker for good that dies at its start.
    "distributed.scheduler.no-workers-timeout": "20s",
}
IMPORTED = ["pytest", "tests.conftest", "etl.job", "remap.job", "train.job", "train.run.trainer"]
# What training imports when it needs it: to fold in, and torch itself for the first gradient.
IMPORTED += ["train.tables.folding", "torch.fx.experimental.symbolic_shapes"]


def forking() -> ForkServerContext:
    """Return what starts such processes; they have the environment of the first of them."""
    with dask.config.set(FORKING):
        context: ForkServerContext = get_mp_context()  # Dask sets what is imported, once; what follows counts
    context.set_forkserver_preload(IMPORTED)
    return context


def apart(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process of its own; its result."""
    with ProcessPoolExecutor(1, forking()) as pool:
        return pool.submit(function, *arguments).result(600)


def die_once(sign: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function; the first of all processes that comes here dies instead."""
    if storage.create_text(sign, ""):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)


def cluster_of(num: int) -> distributed.LocalCluster:
    """Start a cluster as the commands do, of workers of one thread, with the environment of this moment."""
    forking()
    with dask.config.set(FORKING):
        return distributed.LocalCluster(
            n_workers=num, threads_per_worker=1, dashboard_address=":0", env=dict(os.environ)
        )


@contextmanager
def workers(num: int) -> Iterator[distributed.Client]:
    """A cluster of a test's own, which may be killed; its end is not what is tested."""
    with dask.config.set(FORKING):  # for workers that take the place of others
        cluster = cluster_of(num)
        try:
            with distributed.Client(cluster) as client:
                yield client
        finally:
            with suppress(TimeoutError):  # a nanny that is starting a worker anew outlasts Dask's patience
                cluster.close()
