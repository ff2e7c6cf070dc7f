"""`--master ssh://HOST,HOST`: Dask's SSHCluster, with the scheduler on the first host.

Users, ports and SSH keys come from ~/.ssh/config, or from `ssh://user@host:port,...`. Hosts that are missing
from ~/.ssh/known_hosts are refused. The interpreter and HADOOP_CONF_DIR have the same path on all hosts. Keys
of the run travel over the connections, and are deleted when the connections end.

    here                                 host
    connection --- keys (stdin) ------>  a shell: writes the keys to a private folder, prints the path, waits
    connection --- command line ------>  the scheduler or the workers, which read the keys at that path

When the connections end, even by kill -9, the shell deletes the folder, and the processes end. An SSH server
sends no signal then; it only closes the input of its commands.
"""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncssh
import dask
from distributed import SpecCluster
from distributed.deploy import ssh

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import CORES_VARIABLE, FACING, pre_spawn_environment
from graphmill.config.sections.cluster import LOOPBACK, ClusterConfig
from graphmill.errors import ConfigError

_PASSED_ON = ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "KRB5_CONFIG")

_HOST = re.compile(r"(?:(?P<username>[\w.-]+)@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?")

# The shell ends with its input only, so that no signal interrupts `rm`. `mktemp -d` makes a private folder.
_HOLD = (
    'umask 077; folder=$(mktemp -d "${{TMPDIR:-/tmp}}/graphmill-keys-XXXXXXXXXX") || exit 1; '
    "trap '' HUP INT TERM; trap 'rm -rf \"$folder\"' EXIT; "
    'head -c {num_bytes} > "$folder/keys.pem" && echo "$folder/keys.pem" && cat > /dev/null'
)
# Runs the command "$@", and terminates it at the end of the input.
_TIED = (
    'exec 3<&0; "$@" 3<&- & command=$!; { read -r _ <&3; kill $command; } > /dev/null 2>&1 & '
    "wait $command; status=$?; kill $! 2> /dev/null; exit $status"
)
# Prints the address that the scheduler announces; it listens on no other address.
_ANNOUNCED = "from distributed.utils import get_ip; print(get_ip())"


class _Keyed(ssh.Process):  # type: ignore[misc]  # distributed is untyped here
    """A process that starts after its keys are on the host."""

    kwargs: dict[str, Any]

    def __init__(self, *arguments: Any, keys: Keys | None, settings: ClusterConfig, **options: Any) -> None:
        self._python, self._timeout_s = settings.python or sys.executable, settings.start_timeout_s
        tied = shlex.join(["sh", "-c", _TIED, "sh", self._python])
        super().__init__(*arguments, remote_python=tied, **options)
        self._keys = keys
        self._held: asyncssh.SSHClientConnection | None = None

    async def start(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._held = await asyncssh.connect(self.address, **self.connect_options)
                await self._prepare(self._held)
                await super().start()
        except BaseException as error:
            if self._held is not None:
                self._held.close()
            if isinstance(error, TimeoutError):
                reason = f"nothing has started within {self._timeout_s} s (cluster.start_timeout_s)"
                raise TimeoutError(f"{self.address}: {reason}") from error
            raise

    async def close(self) -> None:
        await super().close()
        if self._held is not None:
            self._held.close()

    async def _prepare(self, connection: asyncssh.SSHClientConnection) -> None:
        """Add the path of the keys and the address to listen on to `kwargs`, the command line's options."""
        if self._keys is not None:
            keys = await self._copied(self._keys, connection)
            self.kwargs = {**self.kwargs, "security": keys.options()}
        asked = [_ANNOUNCED]
        if isinstance(self, ssh.Worker):
            scheduler = urlsplit(self.scheduler)
            asked = [FACING, str(scheduler.hostname), str(scheduler.port)]
        done = await connection.run(shlex.join([self._python, "-c", *asked]))
        with suppress(IndexError):  # the start of the process reports an interpreter that does not work
            self.kwargs = {**self.kwargs, "host": str(done.stdout).split()[-1]}

    async def _copied(self, keys: Keys, connection: asyncssh.SSHClientConnection) -> Keys:
        if keys.text is None:
            return keys  # files that every host has
        command = shlex.join(["sh", "-c", _HOLD.format(num_bytes=len(keys.text))])
        holder = await connection.create_process(command)
        holder.stdin.write(keys.text)
        path = (await holder.stdout.readline()).strip()
        if not path:
            raise OSError(f"{self.address}: no folder for the keys: {await holder.stderr.read()}")
        return Keys(path, path, path)


class Scheduler(_Keyed, ssh.Scheduler):  # type: ignore[misc]
    """The scheduler, which listens on one address of the host."""


class SshWorker(_Keyed, ssh.Worker):  # type: ignore[misc]
    """The workers of a host, started by one command."""


@contextmanager
def ssh_cluster(master: str, settings: ClusterConfig, keys: Keys | None) -> Iterator[Any]:
    """Run a Dask cluster with `num_workers` workers on each host during the block."""
    ends = [
        {"address": host, "connect_options": options, "settings": settings, "keys": keys}
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
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment[CORES_VARIABLE] = str(settings.worker_cores)
    with (
        dask.config.set(pre_spawn_environment(environment)),
        SpecCluster(
            scheduler={"cls": Scheduler, "options": {**ends[0], "kwargs": scheduler_options | {"port": 0}}},
            workers={
                number: {"cls": SshWorker, "options": {**end, "kwargs": worker_options}}
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
    for text in master.removeprefix("ssh://").split(","):
        match = _HOST.fullmatch(text)
        if match is None:
            raise ConfigError(f"--master {master}: expected ssh://[USER@]HOST[:PORT],..., found {text!r}")
        options: dict[str, Any] = {key: value for key, value in match.groupdict().items() if value}
        if "port" in options:
            options["port"] = int(options["port"])
        yield options.pop("host"), options
