"""The identity of a process, and whether the process with an identity still lives."""

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


def identify() -> dict[str, Any]:
    """Return the identity of this process, with a new token for each call."""
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
        "process_started": _start_time(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": Path(sys.argv[0]).name,
    }


def machine() -> str | None:
    """Return the identity of this boot and this container; processes that share it see each other."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Tell whether the process lives, stopped or not; None if this process cannot see that."""
    here, pid = machine(), identity.get("pid")
    if here is None or identity.get("machine") != here or not isinstance(pid, int):
        return None
    started = _start_time(pid)
    if started is not None:
        return started == identity.get("process_started")
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's, in a /proc that hides these
        pass
    return None


def describe(identity: Mapping[str, Any]) -> str:
    """Describe the process for a message."""
    known = {key: identity.get(key, "?") for key in ("command", "pid", "host", "user", "since")}
    return "{command} (process {pid} on {host}, user {user}) has it since {since}".format(**known)


def _start_time(pid: int) -> str | None:
    """Return the start time, which tells processes with the same number apart; None if unknown."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19] if fields[0] != "Z" else "ended"
    return None
