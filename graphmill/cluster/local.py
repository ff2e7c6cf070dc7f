"""`--master local[N]` and `--master cuda`: worker processes on this machine."""

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import dask
from distributed import LocalCluster, SpecCluster

from graphmill import storage
from graphmill.cluster import dashboard
from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import LOOPBACK, ClusterConfig, num_cores
from graphmill.errors import ConfigError

# Dask may lose a worker for good if the worker dies during a restart. Tasks would then wait for ever.
_NO_WORKERS_TIMEOUT = {"distributed.scheduler.no-workers-timeout": "60s"}
_CLOSE_TIMEOUT_S = 20.0
_WORKER_PROCESS = "Dask Worker process (from Nanny)"

_Block = AbstractContextManager[SpecCluster]

log = logging.getLogger("graphmill")


def local_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> _Block:
    """Run a scheduler in this process, and N workers with one thread each, during the block."""
    options: dict[str, Any] = {"n_workers": num_workers_of(master), "threads_per_worker": 1}
    if settings.worker_memory != "auto":  # given to Dask, `auto` would be the share of a core
        options["memory_limit"] = settings.worker_memory
    return _cluster_here(settings, partial(scheduler_here, settings, keys, **options))


def num_workers_of(master: str) -> int:
    """Return the number of workers of `local`, `local[N]` or `local[*]`."""
    asked = master.removeprefix("local").strip("[]")
    return num_cores() if asked in ("", "*") else int(asked)


def cuda_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> _Block:
    """Run a scheduler in this process, and one worker per GPU, during the block."""
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise ConfigError(
            f"--master {master}: dask-cuda is not installed; pip install 'graphmill[cuda]'"
        ) from error
    return _cluster_here(settings, partial(LocalCUDACluster, **_connection(settings, keys)))


def scheduler_here(settings: ClusterConfig, keys: Keys | None, **options: Any) -> LocalCluster:
    """Start a scheduler in this process, with the workers that `options` ask for."""
    cluster = LocalCluster(
        **_connection(settings, keys),
        scheduler_kwargs={"dashboard": False},
        silence_logs=logging.CRITICAL,
        **options,
    )
    dashboard.offer(cluster.scheduler)
    return cluster


def _connection(settings: ClusterConfig, keys: Keys | None) -> dict[str, Any]:
    security = keys and keys.security()
    protocol, address = settings.protocol, settings.dashboard_address
    return {"protocol": protocol, "security": security, "dashboard_address": address}


@contextmanager
def _cluster_here(settings: ClusterConfig, start: Callable[..., SpecCluster]) -> Iterator[SpecCluster]:
    if settings.scratch_path is not None:
        storage.make_dir(settings.scratch_path)
    with dask.config.set(_NO_WORKERS_TIMEOUT):
        cluster = start(host=LOOPBACK, local_directory=settings.scratch_path)
        try:
            yield cluster
        finally:
            _close(cluster)


def _close(cluster: SpecCluster) -> None:
    """Close the cluster, and kill workers that remain.

    Dask waits for ever if a worker that died is being restarted at that moment.
    """
    try:
        cluster.close(timeout=_CLOSE_TIMEOUT_S)
    except TimeoutError:
        log.debug("cluster: not closed after %g s, its workers are killed", _CLOSE_TIMEOUT_S)
        for process in multiprocessing.active_children():
            if process.name == _WORKER_PROCESS:
                process.kill()
        cluster.shutdown_on_close = False  # or Dask would wait once more when this process ends
