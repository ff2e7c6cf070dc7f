"""A client of the cluster that `--master` names: started for the run, or running already."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, Security
from distributed.comm import connect as open_connection

from graphmill.cluster import dashboard, local, yarn
from graphmill.cluster.keys import Keys, keys_in_files, new_keys
from graphmill.cluster.resources import check_memory
from graphmill.cluster.settings import ENVIRONMENT, QUIET, pre_spawn_environment
from graphmill.cluster.workers import Environment, prepare, worker_addresses
from graphmill.config.masters import Kind, kind_of
from graphmill.config.sections.cluster import ClusterConfig, TlsConfig
from graphmill.display import progress
from graphmill.errors import ClusterError, ConfigError, NoClusterError, optional
from graphmill.storage import absolute, hdfs, run_folder

Starter = Callable[[str, ClusterConfig, Keys | None], AbstractContextManager[Any]]


def _ssh_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> AbstractContextManager[Any]:
    optional("asyncssh", f"--master {master}: asyncssh is missing; pip install 'graphmill[ssh]'")
    from graphmill.cluster.ssh import ssh_cluster

    return ssh_cluster(master, settings, keys)


STARTERS: Mapping[str, Starter] = {
    "here": local.cluster_in_this_process,
    "local": local.local_cluster,
    "cuda": local.cuda_cluster,
    "yarn": yarn.yarn_cluster,
    "ssh": _ssh_cluster,
}
"""Start a cluster by its kind; those of other kinds run already, and keep running afterwards."""

log = logging.getLogger("graphmill")


@contextmanager
def connect(
    master: str | None, settings: ClusterConfig, imports: Sequence[str] = (), *, is_small: bool = False
) -> Iterator[Client]:
    """Yield a client of the cluster that `master` (default `settings.master`) names.

    A cluster that starts here ends with the block; its workers import the modules `imports` at their start.
    `local` runs work that `is_small` in this process.
    """
    master = local.place_of(master or settings.master, settings, is_small=is_small)
    kind = kind_of(master)
    check_memory(master, settings)
    absolute(".")  # in a folder that was deleted, worker processes never start, and MKL ends this one
    with ExitStack() as stack:
        stack.enter_context(hdfs.use_driver(settings.hdfs_driver))
        try:
            keys = stack.enter_context(_in_a_file(_keys(master, kind, settings)))
            preload = {"distributed.worker.preload": list(imports)} if kind.has_own_workers else {}
            pages = dashboard.tls(settings.dashboard_address, keys)
            stack.enter_context(dask.config.set(pre_spawn_environment(ENVIRONMENT) | QUIET | preload | pages))
            start = STARTERS.get(kind.name)
            cluster = stack.enter_context(start(master, settings, keys)) if start else master
            security = keys and keys.security()
            if not start:
                _check_answers(master, security or Security(), settings.connect_timeout_s)
            client = stack.enter_context(
                Client(cluster, security=security, timeout=settings.connect_timeout_s)
            )
            prepare(client, kind, settings.py_files)
            if not kind.is_this_process:
                variables = {hdfs.DRIVER_VARIABLE: hdfs.chosen_driver()}
                client.register_plugin(Environment(variables))
            _announce(client, master, kind, keys)
        except (ClusterError, OSError, RuntimeError) as error:  # a TimeoutError is an OSError
            is_told = isinstance(error, ClusterError)
            place = "" if is_told else f"--master {master}: the cluster does not answer: "
            root: BaseException = error
            while root.__cause__ is not None:  # Dask's own errors name no reason
                root = root.__cause__
            reason = str(error) if is_told or str(root) in str(error) else f"{error} {root}"
            raise NoClusterError(f"{place}{reason}; nothing was changed: try again") from error
        yield client


def _check_answers(address: str, security: Security, timeout_s: float) -> None:
    """Raise OSError if nobody answers: Dask itself waits without end for a process that is stopped."""

    async def ask() -> None:
        async with asyncio.timeout(timeout_s):
            options = security.get_connection_args("client")
            connection = await open_connection(address, timeout_s, **options)
            await connection.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # this one may have a loop of its own, as in a notebook
            thread.submit(asyncio.run, ask()).result()
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {timeout_s} s (cluster.connect_timeout_s)") from error


def _keys(master: str, kind: Kind, settings: ClusterConfig) -> Keys | None:
    """Choose the keys of the cluster; None without TLS, or if Dask's own configuration names the keys."""
    if kind.is_this_process:
        return None
    if isinstance(settings.tls, TlsConfig):
        return keys_in_files(settings.tls)
    if kind.name in STARTERS:
        if settings.tls == "auto":
            return new_keys()
        log.warning("cluster.tls: off: whoever reaches the ports of this run can run code as you")
    elif master.startswith("tcp://"):
        log.warning("cluster: %s is not encrypted: whoever reaches its ports can run code there", master)
    elif not dask.config.get("distributed.comm.tls.ca-file"):
        raise ConfigError(
            f"--master {master}: set cluster.tls to the ca_file, cert_file and key_file of that cluster"
        )
    return None


@contextmanager
def _in_a_file(keys: Keys | None) -> Iterator[Keys | None]:
    """Write keys to a file that the next run removes after a kill; Dask itself would leave its own file."""
    if keys is None or keys.text is None:
        yield keys
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem", dir=run_folder.path()) as file:
        file.write(keys.text)
        file.flush()
        yield Keys(file.name, file.name, file.name, keys.text)


def _announce(client: Client, master: str, kind: Kind, keys: Keys | None) -> None:
    workers = "in this process" if kind.is_this_process else f"workers: {len(worker_addresses(client))}"
    log.info("cluster: %s, %s", master, workers)
    place = dashboard.described(client, kind, keys)
    if place and not progress.footer(f"dashboard: {place}"):
        log.info("dashboard: %s", place)
