"""Locks: only one run at a time writes a folder, even if runs are on different machines.

    output/.graphmill.lock                JSON: owner of the files in `output` itself: run.json, _SUCCESS, ...
    output/.entities.graphmill.lock       the same for the whole folder `entities`
    ...graphmill.lock.after-3f9c          successor of the owner whose file has that hash
    output/.graphmill.life-{token}        rewritten every `BEAT_S`: shows that the owner is alive

The lock of a whole folder lies beside the folder, because a rename may replace the folder. If the folder
above is read-only, for example at a mount point, the lock lies inside: such a folder cannot be renamed.

A rename that replaces nothing creates a lock file: of many runs that try, one succeeds. The owner never
rewrites the file, so a run that finds another text in its lock has lost the lock. A killed run leaves its
locks. On the same machine, the next run takes them over at once if the process is gone, and never while the
process lives. Elsewhere, the next run takes them over if the owner showed no life for `EXPIRY_S` by the clock
of the storage, and shows none while the run watches: that clock may jump in either direction.

A locked folder may contain another one. So a run that has made its locks looks at the locks above and below.
Of two runs that make their locks at the same time, at least one sees the other.
"""

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError, GraphMillError, LockedError, NotFoundError, StorageError
from graphmill.machine import processes
from graphmill.machine.interrupt import interruptible

NAME = ".graphmill.lock"
LIFE = ".graphmill.life-"
BEAT_S = 15.0
EXPIRY_S = 180.0

_SETTLE_S = 0.5  # a file system without hard links shows a lock while it is written
_TOKEN = re.compile(r"[0-9a-f]{32}")
_LEFTOVER = re.compile(
    r"\.graphmill\.life-\w+"
    r"|\..*graphmill\.lock\.after-\w+"
    r"|\.\..*graphmill\.(lock|life-\w+)(\.after-\w+)?\.tmp-\w+"
)
_ROOT = re.compile(r"\w[^/]*://[^/]*")

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Link:
    """A lock file, or the file of a successor."""

    uri: str
    text: str
    mtime_ns: int

    @property
    def owner(self) -> Mapping[str, Any]:
        """Identity of the process that wrote the file; empty if the text is no lock."""
        with suppress(FormatError):
            content: dict[str, Any] = storage.json_in(self.text, self.uri)
            if _TOKEN.fullmatch(str(content.get("token"))):
                return content
        return {}

    @property
    def life_uri(self) -> str:
        """File that the owner rewrites to show life."""
        return storage.join(storage.parent(self.uri), LIFE + self.owner["token"])


def after(uri: str, link: Link) -> str:
    """Return the URI of the file of the successor to the owner of `link`."""
    return f"{uri}.after-{hashlib.sha256(link.text.encode()).hexdigest()[:16]}"


def last_of(uri: str) -> Link | None:
    """Follow the successors at `uri` to the last."""
    link = read(uri)
    while link and (following := read(after(uri, link))):
        link = following
    return link


def read(uri: str) -> Link | None:
    """Read a lock file, if there is one."""
    for wait_s in (_SETTLE_S, 0.0):
        status = storage.status(uri)
        if status is None or status.is_dir:
            break
        try:
            link = Link(uri, storage.read_text(uri), status.mtime_ns)
        except NotFoundError:
            return None
        except StorageError as error:
            raise type(error)(f"{error}; {_advice(uri)}") from error
        if link.owner:
            return link
        time.sleep(wait_s)
    if status is None:
        return None
    kind = "a folder" if status.is_dir else "another text, or a part of it"
    raise FormatError(f"{uri}: expected the lock of a run, JSON, found {kind}; {_advice(uri)}")


def _advice(uri: str) -> str:
    return f"GraphMill cannot tell whether a run works there; if none does, delete {uri}"


def is_fresh(link: Link, near: str) -> bool:
    """Tell whether the owner showed life recently, by the clock of the storage at `near`."""
    shown_ns = life_ns(link)
    return 0 <= (now_ns(near) - shown_ns) / 1e9 < EXPIRY_S


def life_ns(link: Link) -> int:
    """Return the time, by the clock of the storage, of the owner's last sign of life."""
    life = storage.status(link.life_uri)
    return max(link.mtime_ns, life.mtime_ns) if life else link.mtime_ns


def now_ns(uri: str) -> int:
    """Read the clock of the storage, in the folder of `uri`."""
    probe = storage.temporary_sibling(uri)
    storage.write_text(probe, "")
    status = storage.status(probe)
    storage.delete(probe)
    return status.mtime_ns if status else 0


@dataclass(frozen=True)
class Claim:
    """The locks of a run, checked before every commit. A claim without locks is never lost."""

    uris: Mapping[str, str] = field(default_factory=dict)
    """Folders by lock file."""
    text: str = ""

    def of(self, *folders: str) -> "Claim":
        """Return the locks of these folders only: a worker may be unable to reach the others."""
        wanted = set(map(_resolved, folders))
        return Claim({uri: folder for uri, folder in self.uris.items() if folder in wanted}, self.text)

    def check(self) -> None:
        """Check that this run still holds all locks. Call this right before a commit."""
        for uri in self.uris:
            if storage.read_if_there(uri) != self.text.encode():
                link = read(uri)
                silent = "as this run showed no life for a while; "
                now = silent + processes.describe(link.owner) if link else "was its folder moved or deleted?"
                raise LockedError(f"{uri}: lost, {now}; this run ends here, and has written nothing since")


NO_CLAIM = Claim()


@contextmanager
def held(*folders: str, whole: Iterable[str] = ()) -> Iterator[Claim]:
    """Hold locks during the block: all of them, or none.

    Args:
        folders: Folders whose own files are locked, such as run.json in `output`; not their subfolders.
        whole: Folders that are locked with everything below.
    """
    whole = list(whole)
    for uri in whole:
        storage.check_moves_folders(uri)
    locks = Locks()
    try:
        locks.acquire(list(map(_resolved, folders)), list(map(_resolved, whole)))
        with interruptible() as interrupt:
            keeper = threading.Thread(target=locks.keep, args=(interrupt,), daemon=True, name="lock-keeper")
            keeper.start()
            try:
                yield locks.claim
            finally:
                locks.released.set()
                keeper.join()
    finally:
        locks.release()


def holder(folder: str, *, whole: bool = False) -> str | None:
    """Describe another process that writes the run at `folder`, or `whole` folder; None if there is none."""
    folder = _resolved(folder)
    link = last_of(_beside(folder) if whole else storage.join(folder, NAME))
    if link is None:
        return None
    is_there = processes.is_alive(link.owner)
    if is_there and link.owner.get("pid") == os.getpid():
        return None
    is_alive = is_fresh(link, link.uri) if is_there is None else is_there
    return processes.describe(link.owner) if is_alive else None


def is_abandoned(folder: str) -> bool:
    """Tell, without a write, that no process works on the run at `folder`; False if that cannot be seen."""
    folder = _resolved(folder)
    links = last_of(storage.join(folder, NAME)), last_of(_beside(folder))
    return not any(link and processes.is_alive(link.owner) is not False for link in links)


class Locks:
    """Locks of one run, taken together."""

    def __init__(self) -> None:
        this = processes.identify()
        self.released = threading.Event()
        self.claim = Claim({}, json.dumps(this) + "\n")
        self._life_name = LIFE + this["token"]
        self._silent: set[str] = set()  # texts of owners that showed no life

    def acquire(self, folders: list[str], whole: list[str]) -> None:
        """Take the locks in sorted order, as all runs do, then look at the locks above and below."""
        wanted = {storage.join(folder, NAME): folder for folder in folders}
        wanted |= {_beside(folder): folder for folder in whole}
        for uri, folder in sorted(wanted.items()):
            self._take(uri, folder)
        covering: dict[str, str] = {}  # locks above and below, by URI; one of our locks near each
        for own, folder in self.claim.uris.items():
            above = map(_beside, _with_ancestors(folder))
            hidden = storage.list_hidden(folder, recursive=True) if folder in whole else ()
            below = (uri for uri in hidden if storage.name(uri).endswith(NAME))
            covering |= dict.fromkeys((*above, *below), own)
        for uri, own in covering.items():
            if link := last_of(uri):
                self._refuse_others(link, own)
        for folder in self._folders():
            self._sweep(folder)

    def keep(self, interrupt: Callable[[GraphMillError], None]) -> None:
        """Show life until released; call `interrupt` if another run has taken a lock over."""
        while not self.released.wait(BEAT_S):
            with suppress(StorageError):  # an outage of the storage: try again at the next beat
                try:
                    self.claim.check()
                except (LockedError, FormatError) as error:
                    interrupt(error)
                    return
                for folder in self._folders():
                    storage.write_text(storage.join(folder, self._life_name), "")

    def release(self) -> None:
        """Delete the locks that this run still holds."""
        for uri in reversed(list(self.claim.uris)):
            with suppress(StorageError):  # the lock expires
                if storage.read_if_there(uri) == self.claim.text.encode():
                    storage.delete(uri)
        for folder in self._folders():
            with suppress(StorageError):
                storage.delete(storage.join(folder, self._life_name))

    def _folders(self) -> list[str]:
        return sorted({storage.parent(uri) for uri in self.claim.uris})

    def _take(self, uri: str, folder: str) -> None:
        """Make the lock file `uri` of `folder`, or one inside if `uri` cannot be written."""
        while True:
            last = last_of(uri)
            if last:
                self._refuse_others(last, uri)
            try:
                created = storage.create_text(after(uri, last) if last else uri, self.claim.text)
            except StorageError:
                inside = storage.join(folder, NAME)
                if uri == inside or not storage.is_dir(folder):
                    raise
                self._take(inside, folder)
                return
            if created and (last is None or self._succeeds(uri, last)):
                self.claim = Claim({**self.claim.uris, uri: folder}, self.claim.text)
                return

    def _succeeds(self, uri: str, last: Link) -> bool:
        """Succeed a dead owner, unless another run has done so meanwhile."""
        own = after(uri, last)
        now = last_of(uri)
        if now is None or now.uri != own or now.text != self.claim.text:
            storage.delete(own)
            return False
        storage.write_text(uri, self.claim.text)
        storage.delete(last.life_uri)
        for leftover in storage.list_hidden(storage.parent(uri)):
            if storage.name(leftover).startswith(f"{storage.name(uri)}.after-"):
                storage.delete(leftover)
        return True

    def _refuse_others(self, link: Link, own: str) -> None:
        if link.text != self.claim.text and self._is_alive(link, own):
            raise LockedError(f"{link.uri}: {processes.describe(link.owner)}, and is alive; try again later")

    def _is_alive(self, link: Link, own: str) -> bool:
        is_there = processes.is_alive(link.owner)
        if is_there is not None:
            return is_there
        if is_fresh(link, own):
            return True
        if link.text in self._silent:
            return False
        watch_s = 2 * BEAT_S
        owner = processes.describe(link.owner)
        log.info("lock: %s: %s; watching for %.0f s whether it shows life", link.uri, owner, watch_s)
        before = life_ns(link)
        time.sleep(watch_s)
        if life_ns(link) != before:
            return True
        self._silent.add(link.text)
        return False

    def _sweep(self, folder: str) -> None:
        """Delete old files of killed runs; a young file may be of a run that takes a lock just now."""
        hidden = storage.list_hidden(folder)
        leftovers = [uri for uri in hidden if _LEFTOVER.fullmatch(storage.name(uri))]
        present_ns = now_ns(storage.join(folder, NAME)) if leftovers else 0
        for uri in leftovers:
            status = storage.status(uri)
            if status and (present_ns - status.mtime_ns) / 1e9 > EXPIRY_S:
                storage.delete(uri)


def _resolved(folder: str) -> str:
    """Return `folder` with the local links above it followed, so that all runs agree on its name."""
    path = storage.local_path(folder)
    if path is None:
        return folder.rstrip("/")
    return os.path.join(os.path.realpath(storage.parent(path)), storage.name(path))  # noqa: PTH118


def _beside(folder: str) -> str:
    return storage.join(storage.parent(folder), f".{storage.name(folder)}{NAME}")


def _with_ancestors(folder: str) -> Iterator[str]:
    root = _ROOT.match(folder)
    while folder.rstrip("/") not in ("", ".", root[0] if root else ""):
        yield folder
        folder = storage.parent(folder)
