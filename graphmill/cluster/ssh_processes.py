"""Dask's processes on hosts reached by ssh, each with the keys of the run.

    here                                 host
    connection --- the keys: stdin --->  a shell: writes them to a folder of its own, tells the path, waits
    connection --- a command line ---->  the scheduler, or the workers: they read the keys at that path

When the first connection ends, also by kill -9, the shell removes the folder.
"""

import shlex
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import asyncssh
from distributed.deploy import ssh

from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import FACING

# Ends with its input, and with nothing else, so that nothing interrupts `rm`. `mktemp -d` makes a folder for
# this user alone.
_HOLD = (
    'umask 077; folder=$(mktemp -d "${{TMPDIR:-/tmp}}/graphmill-keys-XXXXXXXXXX") || exit 1; '
    "trap '' HUP INT TERM; trap 'rm -rf \"$folder\"' EXIT; "
    'head -c {num_bytes} > "$folder/keys.pem" && echo "$folder/keys.pem" && cat > /dev/null'
)
# Prints the address that a scheduler tells the others of: it needs no other one.
_TOLD = "from distributed.utils import get_ip; print(get_ip())"


class _Keyed(ssh.Process):  # type: ignore[misc]  # distributed is untyped here
    """Has the keys on the host before the process starts."""

    kwargs: dict[str, Any]

    def __init__(self, *arguments: Any, keys: Keys | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keys = keys
        self._held: asyncssh.SSHClientConnection | None = None

    async def start(self) -> None:
        """Called by Dask."""
        self._held = await asyncssh.connect(self.address, **self.connect_options)
        try:
            await self._prepare(self._held)
            await super().start()
        except BaseException:
            self._held.close()
            raise

    async def close(self) -> None:
        """Called by Dask."""
        await super().close()
        if self._held is not None:
            self._held.close()

    async def _prepare(self, connection: asyncssh.SSHClientConnection) -> None:
        """Add to `kwargs`, which stand in the command line, where the keys are and what to listen on."""
        if self._keys is not None:
            self.kwargs = {**self.kwargs, "security": (await self._brought(self._keys)).options()}
        command = [self.remote_python or sys.executable, "-c", *self._address_command()]
        asked = await connection.run(shlex.join(command))
        with suppress(IndexError):  # a host whose interpreter does not work is told when it shall start
            self.kwargs = {**self.kwargs, "host": str(asked.stdout).split()[-1]}

    def _address_command(self) -> list[str]:
        raise NotImplementedError

    async def _brought(self, keys: Keys) -> Keys:
        if keys.text is None:
            return keys  # files that every host has
        assert self._held is not None
        command = shlex.join(["sh", "-c", _HOLD.format(num_bytes=len(keys.text))])
        holder = await self._held.create_process(command)
        holder.stdin.write(keys.text)
        path = (await holder.stdout.readline()).strip()
        if not path:
            raise OSError(f"{self.address}: no folder for the keys: {await holder.stderr.read()}")
        return Keys.of_file(path)


class Scheduler(_Keyed, ssh.Scheduler):  # type: ignore[misc]
    """The scheduler, at one address of the host."""

    def _address_command(self) -> list[str]:
        return [_TOLD]


class Worker(_Keyed, ssh.Worker):  # type: ignore[misc]
    """The workers of a host, under one command."""

    def _address_command(self) -> list[str]:
        scheduler = urlsplit(self.scheduler)
        return [FACING, str(scheduler.hostname), str(scheduler.port)]
