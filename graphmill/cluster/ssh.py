"""`--master ssh://HOST,HOST`: Dask's SSHCluster, with the scheduler on the first host.

Users, ports and SSH keys come from ~/.ssh/config, or from `ssh://user@host:port,...`. Hosts that are missing
from ~/.ssh/known_hosts are refused. The interpreter and HADOOP_CONF_DIR have the same path on all hosts. Keys
of the run travel over the connections, and are deleted when the connections end.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import CORES_VARIABLE, pre_spawn_environment
from graphmill.config.sections.cluster import LOOPBACK, ClusterConfig
from graphmill.errors import ConfigError

PREFIX = "ssh://"

_HOST = re.compile(r"(?:(?P<username>[\w.-]+)@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?")


@contextmanager
def ssh_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[Any]:
    """Run a Dask cluster with `num_workers` workers on each host during the block."""
    try:
        import asyncssh  # noqa: F401 (our error names the extra to install)
    except ImportError as error:
        raise ConfigError(f"--master {master}: asyncssh is missing; pip install 'graphmill[ssh]'") from error
    from distributed import SpecCluster

    from graphmill.cluster import ssh_processes

    ends = [
        {"address": host, "connect_options": options, "remote_python": settings.python, "keys": keys}
        for host, options in parse(master)
    ]
    scheduler_options = {"protocol": settings.protocol, "dashboard_address": settings.dashboard_address}
    worker_options = {
        "n_workers": settings.num_workers,
        "nthreads": settings.worker_cores,
        "memory_limit": settings.worker_memory,
        "local_directory": settings.scratch_path,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    with (
        dask.config.set(_environment(settings)),
        SpecCluster(
            scheduler={
                "cls": ssh_processes.Scheduler,
                "options": {**ends[0], "kwargs": scheduler_options | {"port": 0}},
            },
            workers={
                number: {"cls": ssh_processes.Worker, "options": {**end, "kwargs": worker_options}}
                for number, end in enumerate(ends)
            },
            security=keys and keys.security(),
        ) as cluster,
    ):
        # Workers print their addresses before they join the cluster.
        cluster.wait_for_workers(settings.num_workers * len(ends), timeout=settings.start_timeout_s)
        yield cluster


def parse(master: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each host, with its options for asyncssh."""
    for text in master.removeprefix(PREFIX).split(","):
        found = _HOST.fullmatch(text)
        if found is None:
            raise ConfigError(f"--master {master}: expected ssh://[USER@]HOST[:PORT],..., found {text!r}")
        options: dict[str, Any] = {key: value for key, value in found.groupdict().items() if value}
        if "port" in options:
            options["port"] = int(options["port"])
        yield options.pop("host"), options


def _environment(settings: ClusterConfig) -> dict[str, str]:
    """Return the settings of Dask that give the workers their environment variables."""
    names = ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "KRB5_CONFIG")
    passed = {name: os.environ[name] for name in names if name in os.environ}
    return pre_spawn_environment(passed | {CORES_VARIABLE: str(settings.worker_cores)})
