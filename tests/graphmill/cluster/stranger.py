"""Attacks of another user of the machine on a run.

For root alone, who becomes `nobody` before he tries, in a process of his own.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from distributed import Security
from distributed.core import connect

from graphmill.cluster.keys import new_keys
from tests.forked import Forks

NOBODY = 65534
SILENCE_S = 3  # of an address that does not answer
SECRET = b"PRIVATE KEY"


def open_to_all(folder: Path) -> None:
    """Let other users go through to this folder of a test's own."""
    for each in (folder, *folder.parents):
        mode = each.stat().st_mode
        if each.stat().st_uid == os.geteuid() and not mode & 0o001:
            each.chmod(mode | 0o011)
    folder.chmod(0o755)


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [pid, *(each.pid for each in process.children(recursive=True))]


def listening(pids: Iterable[int]) -> list[tuple[str, int]]:
    """Addresses and ports that these processes listen on."""
    found = (each for pid in pids for each in psutil.Process(pid).net_connections("inet"))
    return sorted({(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN})


def unix_sockets(pids: Iterable[int]) -> set[str]:
    """The Unix sockets of these processes that have a name; an abstract one begins with @."""
    mine = {inode for pid in pids for inode in inodes(pid)}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {words[7] for words in lines if len(words) == 8 and words[6] in mine}


def inodes(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                yield found[1]


def attack(folder: Path, pids: list[int]) -> list[str]:
    """Try, as `nobody`, what this process can do to the run."""
    ports, sockets = listening(pids), unix_sockets(pids)
    own = new_keys().security()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    done = [f"a file holds a key: {path}" for path in readable(folder) if SECRET in path.read_bytes()]
    for pid in pids:
        for name in ("environ", "cmdline"):
            with suppress(PermissionError):
                read = Path(f"/proc/{pid}/{name}").read_bytes()
                done += [f"{name} of {pid} was read"] * (name == "environ" or SECRET in read)
    for path in sockets:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(path.replace("@", "\0", 1))
            done.append(f"{path} lets me in")
    ways = (("tcp", Security(require_encryption=False)), ("tls", own))
    asked = [(f"{scheme}://{ip}:{port}", each) for ip, port in ports for scheme, each in ways]
    return done + asyncio.run(who_answers(asked))


def readable(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (path for path in (Path(root, name) for name in names) if os.access(path, os.R_OK))


async def who_answers(ways: list[tuple[str, Security]], timeout_s: float = SILENCE_S) -> list[str]:
    """Answers of those who answer in time; wait longer where an answer is expected."""
    asked = [asyncio.wait_for(identity(*way, timeout_s), timeout_s) for way in ways]
    return [told for told in await asyncio.gather(*asked, return_exceptions=True) if isinstance(told, str)]


async def identity(address: str, security: Security, timeout_s: float) -> str:
    """Ask Dask's process there for its identity: who may do that may run code as well."""
    comm = await connect(address, timeout=timeout_s, **security.get_connection_args("client"))
    await comm.write({"op": "identity", "reply": True})
    told = await comm.read()
    await comm.close()
    return f"{told['type']} at {address} answers"


def attempts(forked: Forks, folder: Path, pids: Iterable[int]) -> list[str]:
    """Attempts of the other user that succeed; `folder` is TMPDIR of the run, whose processes these are."""
    done = forked(f"{__name__}:main", folder, *pids)
    found: list[str] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the attacks that succeed as a JSON list."""
    json.dump(attack(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]), sys.stdout)
