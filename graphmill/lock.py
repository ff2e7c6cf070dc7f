"""One run at a time on an output, whoever starts it and wherever.

    output/.graphmill.lock              JSON: who has it; rewritten every `BEAT_S`: its time shows life
    output/.graphmill.lock.after-3f9c   who has taken it over from the owner whose file has that hash

A file appears by a rename that replaces nothing: of many who try, one succeeds. Files are a chain, and the
last one's owner has the lock; nobody ever changes another's. A killed run leaves its lock behind. That is
taken over at once where its process is seen to be gone (same machine), else when it has shown no life for
`EXPIRY_S`. Ages are differences of the storage's own times, so that clocks need not agree. A run that
finds itself succeeded, since it was silent for so long, ends.
"""

import getpass
import hashlib
import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphmill import storage
from graphmill.alarm import alarm, on_main_thread
from graphmill.errors import FormatError, GraphMillError, LockedError, NotFoundError, StorageError

NAME = ".graphmill.lock"
BEAT_S = 15.0
EXPIRY_S = 180.0


@contextmanager
def held(output: str) -> Iterator[None]:
    """Hold the lock of the folder `output` during the block.

    Raises:
        LockedError: somebody else has it, or has taken it over because we showed no life.
    """
    lock = _Lock(storage.join(output, NAME))
    lock.acquire()
    with alarm() if on_main_thread() else nullcontext(_nobody) as ring:
        keeper = threading.Thread(target=lock.keep, args=(ring,), daemon=True, name="output-lock")
        keeper.start()
        try:
            yield
        finally:
            lock.released.set()
            keeper.join()
            lock.release()


def _nobody(error: GraphMillError) -> None:
    """Where no alarm can be set the run goes on, and others find what it writes."""


@dataclass(frozen=True)
class _Link:
    """One file of the chain."""

    uri: str
    text: str
    mtime_ns: int

    @property
    def owner(self) -> dict[str, Any]:
        with suppress(FormatError):
            content: dict[str, Any] = storage.json_in(self.text, self.uri)
            return content
        return {}


class _Lock:
    def __init__(self, root: str) -> None:
        self.released = threading.Event()
        self._root = root
        self._text = json.dumps(_this_process()) + "\n"
        self._uri = root  # the file of ours, once we have it

    def acquire(self) -> None:
        while True:
            chain = self._chain()
            uri = self._after(chain[-1]) if chain else self._root
            if chain:
                last = chain[-1]
                age_s = (self._now_ns() - last.mtime_ns) / 1e9
                if not _is_gone(last.owner) and age_s < EXPIRY_S:
                    raise LockedError(
                        f"{last.uri}: {_told(last.owner)}, and showed life {age_s:.0f} s ago; try again later"
                    )
            if storage.create_text(uri, self._text):
                self._uri = uri
                self._sweep()
                return

    def keep(self, ring: Callable[[GraphMillError], None]) -> None:
        """Show life, until released; an alarm tells if another has taken over."""
        while not self.released.wait(BEAT_S):
            with suppress(StorageError):  # an outage: there will be a next time, or a successor
                if not self.is_ours():
                    chain = self._chain()
                    now = _told(chain[-1].owner) if chain else "nobody has it"
                    ring(
                        LockedError(
                            f"{self._root}: lost after {EXPIRY_S:.0f} s without a sign of life; {now}"
                        )
                    )
                    return
                storage.write_text(self._uri, self._text)

    def is_ours(self) -> bool:
        chain = self._chain()
        return bool(chain) and chain[-1].text == self._text

    def release(self) -> None:
        with suppress(StorageError):  # then it expires
            if self.is_ours():
                for link in self._chain():  # the first is the one that stands in others' way
                    storage.delete(link.uri)

    def _chain(self) -> list[_Link]:
        chain: list[_Link] = []
        while link := _read(self._after(chain[-1]) if chain else self._root):
            chain.append(link)
        return chain

    def _after(self, link: _Link) -> str:
        return f"{self._root}.after-{hashlib.sha256(link.text.encode()).hexdigest()[:16]}"

    def _sweep(self) -> None:
        """Delete the temporaries of killed runs: those that are too old to be of others who try just now."""
        hidden = storage.list_hidden(storage.parent(self._root))
        leftovers = [uri for uri in hidden if storage.name(uri).startswith(f".{NAME}") and ".tmp-" in uri]
        now_ns = self._now_ns() if leftovers else 0
        for uri in leftovers:
            found = storage.status(uri)
            if found and (now_ns - found.mtime_ns) / 1e9 > EXPIRY_S:
                storage.delete(uri)

    def _now_ns(self) -> int:
        """The storage's own time."""
        probe = storage.temporary_sibling(self._root)
        storage.write_text(probe, "")
        found = storage.status(probe)
        storage.delete(probe)
        return found.mtime_ns if found else 0


def _read(uri: str) -> _Link | None:
    try:
        found, text = storage.status(uri), storage.read_text(uri)
    except NotFoundError:
        return None
    return _Link(uri, text, found.mtime_ns) if found else None


def _this_process() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return {
        "token": uuid.uuid4().hex,
        "user": user,
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "process_started": _process_started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": Path(sys.argv[0]).name,
    }


def _machine() -> str | None:
    """What only processes share that see each other: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def _process_started(pid: int) -> str | None:
    """Tells a process from a later one of the same number; None if there is none."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19] if fields[0] != "Z" else None
    return None


def _is_gone(owner: dict[str, Any]) -> bool:
    machine = _machine()
    if machine is None or owner.get("machine") != machine or not isinstance(owner.get("pid"), int):
        return False
    return _process_started(owner["pid"]) != owner.get("process_started")


def _told(owner: dict[str, Any]) -> str:
    known = {key: owner.get(key, "?") for key in ("command", "pid", "host", "user", "since")}
    return "{command} (process {pid} on {host}, user {user}) has it since {since}".format(**known)
