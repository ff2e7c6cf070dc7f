"""A client of the cluster that `--master` names: started here, or joined at its address."""

import logging
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
import distributed
from distributed import Client, LocalCluster, SpecCluster

from graphmill.cluster import dashboard
from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import LOOPBACK, ClusterConfig, TlsConfig, num_cores
from graphmill.cluster.workers import Environment, prepare
from graphmill.display import progress
from graphmill.errors import ClusterError, ConfigError
from graphmill.machine import forkserver, leftovers
from graphmill.storage import hdfs

YARN = "yarn"

# Dask may lose a worker of its own for good, if it dies while it is started anew; tasks would wait for ever.
_NO_WORKERS_TIMEOUT = {"distributed.scheduler.no-workers-timeout": "60s"}
_CLOSE_TIMEOUT_S = 20.0
_WORKER_PROCESS = "Dask Worker process (from Nanny)"

_ADDRESS = re.compile(r"(tcp|tls)://")
_LOCAL = re.compile(r"(local|cuda)\b")

log = logging.getLogger("graphmill")


@contextmanager
def connect(master: str | None, settings: ClusterConfig) -> Iterator[Client]:
    """A client of the cluster that `master` (default `settings.master`) names; what it started ends with it.

    Raises:
        ConfigError: `master` names nothing that is known.
        ClusterError: the cluster cannot be started or reached.
    """
    master = master or settings.master
    variables = {hdfs.DRIVER_VARIABLE: os.environ.get(hdfs.DRIVER_VARIABLE, settings.hdfs_driver)}
    os.environ.update(variables)
    with ExitStack() as stack:
        try:
            keys = stack.enter_context(_in_a_file(_keys(master, settings)))
            target = _target(master, settings, keys, stack)
            security = keys and keys.security()
            client = stack.enter_context(
                Client(target, security=security, timeout=settings.connect_timeout_s)
            )
        except (OSError, TimeoutError, RuntimeError) as error:
            raise ClusterError(f"--master {master}: the cluster does not answer: {error}") from error
        is_local = _LOCAL.match(master) is not None
        prepare(client, settings.py_files, own_scheduler=is_local or master == YARN, own_workers=is_local)
        client.register_plugin(Environment(variables, ignores_interrupts=is_local))
        _announce(client, master)
        yield client


def _keys(master: str, settings: ClusterConfig) -> Keys | None:
    """Those of the cluster; None where it has none, or Dask's own configuration names them."""
    if _ADDRESS.match(master) and not isinstance(settings.tls, TlsConfig):
        if master.startswith("tcp://"):
            log.warning("cluster: %s is not encrypted: whoever reaches its ports can run code there", master)
        elif not dask.config.get("distributed.comm.tls.ca-file"):
            raise ConfigError(
                f"--master {master}: set cluster.tls to the ca_file, cert_file and key_file of that cluster"
            )
        return None
    if settings.tls == "off":
        log.warning("cluster.tls: off: whoever reaches the ports of this run can run code as you")
    return settings.keys()


@contextmanager
def _in_a_file(keys: Keys | None) -> Iterator[Keys | None]:
    """The same keys; those of the run's own in a file that the next run removes if this one is killed.

    Dask writes keys that are in memory into a temporary folder whenever it uses them, and nobody would
    remove the folder of a killed process.
    """
    if keys is None or keys.text is None:
        yield keys
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem", dir=leftovers.folder()) as file:
        file.write(keys.text)
        file.flush()
        yield Keys.of_file(file.name, keys.text)


def _target(master: str, settings: ClusterConfig, keys: Keys | None, stack: ExitStack) -> Any:
    if _ADDRESS.match(master):
        return master
    variables = forkserver.ENVIRONMENT
    stack.enter_context(
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{k}": v for k, v in variables.items()})
    )
    if _LOCAL.match(master):
        stack.enter_context(dask.config.set(_NO_WORKERS_TIMEOUT))
    if master == YARN:
        from graphmill.cluster.yarn import yarn_cluster

        return stack.enter_context(yarn_cluster(settings, keys))
    if master.startswith("ssh://"):
        from graphmill.cluster.ssh import ssh_cluster

        return stack.enter_context(ssh_cluster(master, settings, keys))
    if local := re.fullmatch(r"local(?:\[(\d*[1-9]\d*|\*)\])?", master):
        if forkserver.is_started():
            distributed.utils._forkserver_preload_set = True  # else Dask imports all it knows, here and now
            stack.enter_context(
                dask.config.set({"distributed.worker.multiprocessing-method": forkserver.METHOD})
            )
        cluster = _closed_at_last(
            stack,
            LocalCluster(
                n_workers=num_cores() if local[1] in (None, "*") else int(local[1]),
                threads_per_worker=1,
                memory_limit=settings.worker_memory,
                local_directory=settings.scratch_path,
                host=LOOPBACK,
                protocol=settings.protocol,
                security=keys and keys.security(),
                dashboard_address=settings.dashboard_address,
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
            ),
        )
        leftovers.note()
        dashboard.offer(cluster.scheduler)
        return cluster
    if master == "cuda":
        try:
            from dask_cuda import LocalCUDACluster
        except ImportError as error:
            raise ClusterError(
                "--master cuda: dask-cuda is not installed; pip install 'graphmill[cuda]'"
            ) from error
        return _closed_at_last(
            stack,
            LocalCUDACluster(
                local_directory=settings.scratch_path,
                host=LOOPBACK,
                protocol=settings.protocol,
                security=keys and keys.security(),
                dashboard_address=settings.dashboard_address,
            ),
        )
    raise ConfigError(
        f"--master {master}: expected local, local[N], local[*], cuda, yarn, ssh://HOST,HOST, "
        "tcp://HOST:PORT or tls://HOST:PORT"
    )


def _closed_at_last(stack: ExitStack, cluster: SpecCluster) -> SpecCluster:
    """The cluster, closed when the stack is.

    Dask waits for ever where a worker that has died is being started anew at that moment. Those of its
    workers that are still there some time later are killed, and it is left as it is.
    """

    def close() -> None:
        try:
            cluster.close(timeout=_CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.debug("cluster: not closed after %g s, its workers are killed", _CLOSE_TIMEOUT_S)
            for process in multiprocessing.active_children():
                if process.name == _WORKER_PROCESS:
                    process.kill()
            cluster.shutdown_on_close = False  # at the process' end, which would wait once more

    stack.callback(close)
    return cluster


def _announce(client: Client, master: str) -> None:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    shows_pages = dashboard.is_installed()
    where = f", dashboard at {client.dashboard_link}" if shows_pages else ""
    log.info("cluster: %s, %d workers%s", master, len(workers), where)
    if shows_pages:
        progress.footer(f"dashboard: {client.dashboard_link}")
