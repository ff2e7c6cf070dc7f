"""An SSH server on loopback (asyncssh), which runs commands in a shell and ends with its standard input.

Usage: python -m tests.graphmill.cluster.ssh_server HOST_KEY_FILE AUTHORIZED_KEYS_FILE; prints its port.
"""

import asyncio
import sys
from typing import Any

import asyncssh


async def run_by_shell(process: Any) -> None:
    """Run a command as sshd does: pass its output on, and close its input when the client is gone."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(process.command, stdin=pipe, stdout=pipe, stderr=pipe)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    closed, ended = asyncio.ensure_future(process.wait_closed()), asyncio.ensure_future(child.wait())
    await asyncio.wait([closed, ended], return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        child.stdin.close()
    process.exit(await ended)


async def serve(host_key: str, authorized_keys: str) -> None:
    keys = {"server_host_keys": [host_key], "authorized_client_keys": authorized_keys}
    server = await asyncssh.listen("127.0.0.1", 0, process_factory=run_by_shell, encoding=None, **keys)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 (what the parent waits for)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
