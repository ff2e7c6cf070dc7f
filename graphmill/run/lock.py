"""One run at a time on a place, whoever starts it and wherever.

    output/.graphmill.lock                JSON: who has what lies in `output` itself: run.json, _SUCCESS, ...
    output/.entities.graphmill.lock       the same of the folder `entities`, all of it
    ...graphmill.lock.after-3f9c          who is taking it over from the owner whose file has that hash
    output/.graphmill.life-{token}        rewritten every `BEAT_S`: its time shows life of all these locks

A lock of a whole folder lies beside it, as the folder may be replaced by a rename. Where the folder above
cannot be written, a mount point say, it lies inside: such a folder cannot be renamed.

A file appears by a rename that replaces nothing: of many who try, one succeeds. A lock file is never
rewritten by its owner, so whoever finds another text in it has lost it. A killed run leaves its locks
behind. These are taken over at once where its process is seen to be gone (same machine), and never while
it is there; elsewhere when it has shown no life for `EXPIRY_S`, by the storage's own times, and shows none
while it is watched: the storage's clock may jump, in either direction.

Locks of other names may be about one place: a folder in a folder. So who has made its own looks at those
above and below; of two who make theirs at the same time at least one sees the other.
"""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError, GraphMillError, LockedError, StorageError
from graphmill.machine import processes
from graphmill.machine.interrupt import interruptible, on_main_thread
from graphmill.run import lock_file

NAME = lock_file.NAME
BEAT_S = 15.0

_LEFTOVER = re.compile(
    r"\.graphmill\.life-\w+"  # of killed runs, all of them
    r"|\..*graphmill\.lock\.after-\w+"
    r"|\.\..*graphmill\.(lock|life-\w+)(\.after-\w+)?\.tmp-\w+"
)
_ROOT = re.compile(r"\w[^/]*://[^/]*")

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Claim:
    """The locks that a run holds: goes to the tasks that commit for it. One of no locks is never lost."""

    uris: Mapping[str, str] = field(default_factory=dict)
    """Lock files, and the folders that they lock."""
    text: str = ""

    def of(self, *folders: str) -> "Claim":
        """The locks of these alone: a worker need not reach the others."""
        wanted = set(map(_resolved, folders))
        return Claim({uri: folder for uri, folder in self.uris.items() if folder in wanted}, self.text)

    def check(self) -> None:
        """Make sure that all of it is still held: the last thing to do before a commit.

        Raises:
            LockedError: another run has taken a lock over, or somebody has deleted it.
        """
        for uri in self.uris:
            if lock_file.read_text(uri) != self.text:
                link = lock_file.read(uri)
                now = processes.describe(link.owner) if link else "nobody has it"
                raise LockedError(
                    f"{uri}: lost, as this run showed no life for a while; {now}; this run ends here, and "
                    "has written nothing since"
                )


NO_CLAIM = Claim()


@contextmanager
def held(*folders: str, whole: Iterable[str] = ()) -> Iterator[Claim]:
    """Hold locks during the block: all of them, or none.

    Args:
        folders: what lies in them by our names, as run.json in `output`; not their subfolders.
        whole: folders that may be replaced, with all that is in them.

    Raises:
        LockedError: somebody else has one of them, or has taken it over because we showed no life.
        FormatError: a lock is no lock file.
    """
    locks = _Locks()
    try:
        locks.acquire(list(map(_resolved, folders)), list(map(_resolved, whole)))
        with interruptible() if on_main_thread() else nullcontext(_ignore) as interrupt:
            keeper = threading.Thread(target=locks.keep, args=(interrupt,), daemon=True, name="lock-keeper")
            keeper.start()
            try:
                yield locks.claim
            finally:
                locks.released.set()
                keeper.join()
    finally:
        locks.release()


def holder(folder: str) -> str | None:
    """Describe the other process at work on the run at `folder`; None if there is none."""
    link = lock_file.last_of(storage.join(_resolved(folder), NAME))
    if link is None or _is_own_process(link.owner):
        return None
    is_there = processes.is_alive(link.owner)
    if is_there is None:
        is_there = lock_file.is_fresh(link, link.uri)
    return processes.describe(link.owner) if is_there else None


def _ignore(error: GraphMillError) -> None:
    """Do nothing: without an alarm the run goes on, up to its next commit."""


class _Locks:
    def __init__(self) -> None:
        this = processes.identify()
        self.released = threading.Event()
        self.claim = Claim({}, json.dumps(this) + "\n")
        self._life_name = lock_file.LIFE + this["token"]
        self._silent: set[str] = set()  # texts of owners that have been watched

    def acquire(self, folders: list[str], whole: list[str]) -> None:
        """Take the locks, in an order that is everybody's, then look above and below."""
        places = {storage.join(folder, NAME): folder for folder in folders}
        places |= {_beside(folder): folder for folder in whole}
        for uri, folder in sorted(places.items()):
            self._take(uri, folder)
        looked: set[str] = set()
        for own, folder in self.claim.uris.items():
            above = map(_beside, _with_ancestors(folder))
            for uri in (*above, *(_locks_below(folder) if folder in whole else ())):
                if uri not in looked and (link := lock_file.last_of(uri)):
                    self._refuse_others(link, own)
                looked.add(uri)
        for folder in self._folders():
            self._sweep(folder)

    def keep(self, interrupt: Callable[[GraphMillError], None]) -> None:
        """Show life, until released; an alarm tells if another has taken over."""
        while not self.released.wait(BEAT_S):
            with suppress(StorageError):  # an outage: there will be a next time, or a successor
                try:
                    self.claim.check()
                except (LockedError, FormatError) as error:
                    interrupt(error)
                    return
                for folder in self._folders():
                    storage.write_text(storage.join(folder, self._life_name), "")

    def release(self) -> None:
        """Give back what is still ours."""
        for uri in reversed(list(self.claim.uris)):
            with suppress(StorageError):  # then it expires
                if lock_file.read_text(uri) == self.claim.text:
                    storage.delete(uri)
        for folder in self._folders():
            with suppress(StorageError):
                storage.delete(storage.join(folder, self._life_name))

    def _folders(self) -> list[str]:
        return sorted({storage.parent(uri) for uri in self.claim.uris})

    def _take(self, uri: str, folder: str) -> None:
        """Make the lock file `uri` of `folder` ours; where it cannot be written, one inside."""
        while True:
            last = lock_file.last_of(uri)
            if last:
                self._refuse_others(last, uri)
            try:
                created = storage.create_text(lock_file.after(uri, last) if last else uri, self.claim.text)
            except StorageError:
                inside = storage.join(folder, NAME)
                if uri == inside or not storage.is_dir(folder):
                    raise
                self._take(inside, folder)
                return
            if created and (last is None or self._succeeds(uri, last)):
                self.claim = Claim({**self.claim.uris, uri: folder}, self.claim.text)
                return

    def _succeeds(self, uri: str, last: lock_file.Link) -> bool:
        """Take the place of a dead owner, unless another one has done so since we looked."""
        own = lock_file.after(uri, last)
        found = lock_file.last_of(uri)
        if found is None or found.uri != own or found.text != self.claim.text:
            storage.delete(own)
            return False
        storage.write_text(uri, self.claim.text)
        storage.delete(last.life_uri)
        successors = f"{storage.name(uri)}.after-"
        for each in storage.list_hidden(storage.parent(uri)):
            if storage.name(each).startswith(successors):
                storage.delete(each)
        return True

    def _refuse_others(self, link: lock_file.Link, own: str) -> None:
        if link.text == self.claim.text or not self._is_alive(link, own):
            return
        raise LockedError(f"{link.uri}: {processes.describe(link.owner)}, and is alive; try again later")

    def _is_alive(self, link: lock_file.Link, own: str) -> bool:
        is_there = processes.is_alive(link.owner)
        if is_there is not None:
            return is_there
        if lock_file.is_fresh(link, own):
            return True
        if link.text in self._silent:
            return False
        watch_s = 2 * BEAT_S
        told = processes.describe(link.owner)
        log.info("lock: %s: %s; watching for %.0f s whether it shows life", link.uri, told, watch_s)
        before = lock_file.life_ns(link)
        time.sleep(watch_s)
        if lock_file.life_ns(link) != before:
            return True
        self._silent.add(link.text)
        return False

    def _sweep(self, folder: str) -> None:
        """Delete what killed runs left: if it is too old to be of others who are at it just now."""
        hidden = storage.list_hidden(folder)
        leftovers = [uri for uri in hidden if _LEFTOVER.fullmatch(storage.name(uri))]
        now_ns = lock_file.now_ns(storage.join(folder, NAME)) if leftovers else 0
        for uri in leftovers:
            found = storage.status(uri)
            if found and (now_ns - found.mtime_ns) / 1e9 > lock_file.EXPIRY_S:
                storage.delete(uri)


def _resolved(folder: str) -> str:
    """`folder` as others may spell it who come by other links: local ones above it are followed."""
    path = storage.local_path(folder)
    if path is None:
        return folder.rstrip("/")
    return os.path.join(os.path.realpath(storage.parent(path)), storage.name(path))  # noqa: PTH118


def _beside(folder: str) -> str:
    return storage.join(storage.parent(folder), f".{storage.name(folder)}{NAME}")


def _locks_below(folder: str) -> list[str]:
    hidden = storage.list_hidden(folder, recursive=True)
    return [uri for uri in hidden if storage.name(uri).endswith(NAME)]


def _with_ancestors(folder: str) -> Iterator[str]:
    """The folder, and those above it but for the root."""
    root = _ROOT.match(folder)
    while folder.rstrip("/") not in ("", ".", root[0] if root else ""):
        yield folder
        folder = storage.parent(folder)


def _is_own_process(found: Mapping[str, Any]) -> bool:
    return found.get("pid") == os.getpid() and processes.is_alive(found) is True
