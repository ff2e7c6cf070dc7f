"""Workers on this machine: `--master local`, `local[N]` and `cuda`.

`local` runs small work in this process: worker processes take longer to import what they need.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import dask
from distributed import LocalCluster, SpecCluster

from graphmill import storage
from graphmill.cluster import dashboard
from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import num_cores
from graphmill.config.sections.cluster import LOOPBACK, ClusterConfig
from graphmill.errors import ClusterError, optional
from graphmill.machine import interrupt

# Dask may lose a worker for good if the worker dies during a restart. Tasks would then wait for ever.
_NO_WORKERS_TIMEOUT = {"distributed.scheduler.no-workers-timeout": "60s"}
# Dask compares the memory of the whole process with each worker's limit.
_NO_LIMITS = dict.fromkeys(
    (f"distributed.worker.memory.{name}" for name in ("target", "spill", "pause", "terminate")), False
)
_CLOSE_TIMEOUT_S = 20.0
_WORKER_PROCESS = "Dask Worker process (from Nanny)"

_Block = AbstractContextManager[SpecCluster]

log = logging.getLogger("graphmill")


def place_of(master: str, settings: ClusterConfig, *, is_small: bool) -> str:
    """Return `local[*]` for `local`, unless this process, which has no memory limit, can do the work."""
    fits = is_small and settings.worker_memory == "auto" and not settings.py_files
    return "local[*]" if master == "local" and not fits else master


@contextmanager
def cluster_in_this_process(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[SpecCluster]:
    """Run a scheduler and a worker per core, threads of this process, during the block."""
    options = {"n_workers": num_cores(), "threads_per_worker": 1, "processes": False}
    start = partial(scheduler_here, settings, keys, **options, protocol="inproc://", host=None)
    with _environment_of_workers(), dask.config.set(_NO_LIMITS), _cluster_here(settings, start) as cluster:
        yield cluster


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Set the variables of worker processes for the libraries that tasks import, as Dask's nannies do."""
    variables = dask.config.get("distributed.nanny.pre-spawn-environ")
    missing = {key: str(variable) for key, variable in variables.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            os.environ.pop(key, None)


def local_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> _Block:
    """Run a scheduler in this process, and N workers with one thread each, during the block."""
    _check_semaphores(master)
    options: dict[str, Any] = {"n_workers": num_workers_of(master), "threads_per_worker": 1}
    if settings.worker_memory != "auto":  # given to Dask, `auto` would be the share of a core
        options["memory_limit"] = settings.worker_memory
    return _cluster_here(settings, partial(scheduler_here, settings, keys, **options))


def _check_semaphores(master: str) -> None:
    try:
        multiprocessing.Lock()
    except OSError as error:  # Dask would wait for its workers without end
        raise ClusterError(
            f"--master {master}: worker processes need a /dev/shm to write to: {error}"
        ) from error


def num_workers_of(master: str) -> int:
    """Return the number of workers of `local[N]` or `local[*]`."""
    asked = master.removeprefix("local").strip("[]")
    return num_cores() if asked == "*" else int(asked)


def cuda_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> _Block:
    """Run a scheduler in this process, and one worker per GPU, during the block."""
    _check_semaphores(master)
    missing = f"--master {master}: dask-cuda is not installed; pip install 'graphmill[cuda]'"
    made = optional("dask_cuda", missing).LocalCUDACluster
    return _cluster_here(settings, partial(made, **_connection(settings, keys)))


def scheduler_here(settings: ClusterConfig, keys: Keys | None, **options: Any) -> LocalCluster:
    """Start a scheduler in this process, with the workers that `options` ask for."""
    dashboard.check(settings.dashboard_address)
    # Of connections that close after the end of the cluster, and of `silence_logs`, it logs a traceback.
    logging.getLogger("distributed.batched").setLevel(logging.CRITICAL)
    cluster = LocalCluster(
        scheduler_kwargs={"dashboard": False},
        silence_logs=logging.CRITICAL,
        **(_connection(settings, keys) | options),
    )
    dashboard.offer(cluster.scheduler)
    return cluster


def _connection(settings: ClusterConfig, keys: Keys | None) -> dict[str, Any]:
    security = keys and keys.security()
    protocol, address = settings.protocol, settings.dashboard_address
    return {"protocol": protocol, "host": LOOPBACK, "security": security, "dashboard_address": address}


@contextmanager
def _cluster_here(settings: ClusterConfig, start: Callable[..., SpecCluster]) -> Iterator[SpecCluster]:
    if settings.scratch_path is not None:
        storage.make_dir(settings.scratch_path)
    with dask.config.set(_NO_WORKERS_TIMEOUT), ExitStack() as stack:
        with interrupt.deferred():  # of half a cluster, Dask closes nothing
            cluster = start(local_directory=settings.scratch_path)
            stack.callback(_close, cluster)
        yield cluster


def _close(cluster: SpecCluster) -> None:
    """Close the cluster, and kill workers that remain: Dask may wait forever for one that restarts."""
    try:
        cluster.close(timeout=_CLOSE_TIMEOUT_S)
    except TimeoutError:
        log.debug("cluster: not closed after %g s, its workers are killed", _CLOSE_TIMEOUT_S)
        for process in multiprocessing.active_children():
            if process.name == _WORKER_PROCESS:
                process.kill()
        cluster.shutdown_on_close = False  # or Dask would wait once more when this process ends
