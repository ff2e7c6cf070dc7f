"""`--master ssh://HOST,HOST`: Dask's SSHCluster, with the scheduler on the first host.

Users, ports and keys are those of ~/.ssh/config, or `ssh://user@host:port,...`; hosts that
~/.ssh/known_hosts does not know are refused. All hosts have the same files: the interpreter,
HADOOP_CONF_DIR. A run's own keys come by the connections, and are gone when these are.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import CORES_VARIABLE, LOOPBACK, ClusterConfig
from graphmill.errors import ClusterError, ConfigError

PREFIX = "ssh://"

_HOST = re.compile(r"(?:(?P<username>[\w.-]+)@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?")


@contextmanager
def ssh_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[Any]:
    """A Dask cluster with `num_workers` workers on each host; all is gone when the block ends.

    Raises:
        ConfigError: `master` names no hosts.
        ClusterError: asyncssh is not installed.
    """
    try:
        import asyncssh  # noqa: F401 (said here, and not by Dask's own error)
    except ImportError as error:
        raise ClusterError(f"--master {master}: asyncssh is missing; pip install 'graphmill[ssh]'") from error
    from distributed import SpecCluster

    from graphmill.cluster import ssh_processes

    hosts, options = _parse(master)
    ends = [
        {"address": host, "connect_options": each, "remote_python": settings.python, "keys": keys}
        for host, each in zip(hosts, options, strict=True)
    ]
    scheduler_options = {
        "port": 0,
        "protocol": settings.protocol,
        "dashboard_address": settings.dashboard_address,
    }
    worker_options = {
        "n_workers": settings.num_workers,
        "nthreads": settings.worker_cores,
        "memory_limit": settings.worker_memory,
        "local_directory": settings.scratch_path,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    with (
        dask.config.set(
            {f"distributed.nanny.pre-spawn-environ.{k}": v for k, v in _environment(settings).items()}
        ),
        SpecCluster(
            scheduler={"cls": ssh_processes.Scheduler, "options": {**ends[0], "kwargs": scheduler_options}},
            workers={
                number: {"cls": ssh_processes.Worker, "options": {**end, "kwargs": worker_options}}
                for number, end in enumerate(ends)
            },
            security=keys and keys.security(),
        ) as cluster,
    ):
        yield cluster


def _parse(master: str) -> tuple[list[str], list[dict[str, Any]]]:
    hosts, options = [], []
    for text in master.removeprefix(PREFIX).split(","):
        found = _HOST.fullmatch(text)
        if found is None:
            raise ConfigError(f"--master {master}: expected ssh://[USER@]HOST[:PORT],..., found {text!r}")
        given = {key: value for key, value in found.groupdict().items() if value and key != "host"}
        hosts.append(found["host"])
        options.append({key: int(value) if key == "port" else value for key, value in given.items()})
    return hosts, options


def _environment(settings: ClusterConfig) -> dict[str, str]:
    passed = {
        k: v for k, v in os.environ.items() if k in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "KRB5_CONFIG")
    }
    return {**passed, CORES_VARIABLE: str(settings.worker_cores)}
