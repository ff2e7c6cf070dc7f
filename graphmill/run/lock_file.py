"""Lock files: the owner of a lock, its successors, and its last sign of life. See `lock`."""

import hashlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError, StorageError

NAME = ".graphmill.lock"
LIFE = ".graphmill.life-"
EXPIRY_S = 180.0

_SETTLE_S = 0.5  # a file system without hard links shows a lock while it is written
_TOKEN = re.compile(r"[0-9a-f]{32}")


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
            raise StorageError(f"{error}; {_advice(uri)}") from error
        if link.owner:
            return link
        time.sleep(wait_s)
    if status is None:
        return None
    kind = "a folder" if status.is_dir else "another text, or a part of it"
    raise FormatError(f"{uri}: expected the lock of a run, JSON, found {kind}; {_advice(uri)}")


def _advice(uri: str) -> str:
    return f"GraphMill cannot tell whether a run works there; if none does, delete {uri}"


def read_text(uri: str) -> str | None:
    """Read any text of a lock file; None if there is no file."""
    try:
        return storage.read_text(uri)
    except NotFoundError:
        return None


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
