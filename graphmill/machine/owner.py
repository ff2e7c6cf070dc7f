"""Which process this is, for others to see, and whether another one is still there."""

import getpass
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """This process, with a token that no other call gives."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return {
        "token": uuid.uuid4().hex,
        "user": user,
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": os.getpid(),
        "process_started": _started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": Path(sys.argv[0]).name,
    }


def machine() -> str | None:
    """Identity of this boot of this machine, or of this container: processes that see each other share it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def is_there(owner: Mapping[str, Any]) -> bool | None:
    """Whether the process lives, stopped or not; None where that cannot be seen from here."""
    here, pid = machine(), owner.get("pid")
    if here is None or owner.get("machine") != here or not isinstance(pid, int):
        return None
    started = _started(pid)
    if started is not None:
        return started == owner.get("process_started")
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's, in a /proc that hides these
        pass
    return None


def told(owner: Mapping[str, Any]) -> str:
    """The process in words."""
    known = {key: owner.get(key, "?") for key in ("command", "pid", "host", "user", "since")}
    return "{command} (process {pid} on {host}, user {user}) has it since {since}".format(**known)


def _started(pid: int) -> str | None:
    """Tells a process from a later one of the same number; None if none is to be seen."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19] if fields[0] != "Z" else "ended"
    return None
