"""Where the newest files of every partition are, and of what all buckets share.

    checkpoint_path/
      embeddings_{type}_{part}.v{V}.h5, model.v{V}.h5       the committed version
      .spread.tmp-{run}/{grant}/                            what one bucket of version V + 1 has changed:
        embeddings_{type}_{part}.v{V+1}.h5, model.v{V+1}.h5   its partitions, and all that is shared

A grant is the permission to train a bucket once; its number is never used again. What a worker writes
counts when the coordinator says so, all at once, so a worker that is lost, or thought to be, leaves files
that nobody will read. When all buckets are done, the newest files are renamed to be the next version.
"""

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from graphmill import storage
from graphmill.formats import pbg_checkpoint
from train.edges.schedule import Key


class Place(NamedTuple):
    """Where files are, and which state of them it is: equal revisions are equal files.

    A version of 0 means that there is no file yet.
    """

    revision: int
    path: str
    version: int


class Places:
    """The places of one run's files."""

    def __init__(self, checkpoint_path: str, version: int) -> None:
        self.checkpoint_path = checkpoint_path
        self.version = version
        self._folder = storage.join(checkpoint_path, f".spread.tmp-{uuid.uuid4().hex[:12]}")
        self._committed = Place(0, checkpoint_path, version)
        self._of: dict[Key, Place] = {}
        self._revision: dict[Key, int] = {}  # of committed files
        self.shared = self._committed
        self._old_shared: set[Place] = set()

    def of(self, key: Key) -> Place:
        """Of a partition."""
        return self._of.get(key) or self._committed._replace(revision=self._revision.get(key, 0))

    def folder(self, grant: int) -> str:
        """Where a grant's bucket writes."""
        return storage.join(self._folder, str(grant))

    def publish(self, grant: int, keys: Iterable[Key], *, shares: bool = True) -> None:
        """What the grant has written counts from now on: `keys`, and with `shares` all that is shared."""
        new = Place(grant, self.folder(grant), self.version + 1)
        for key in keys:
            old = self._of.get(key)
            self._of[key] = new
            if old is not None:
                storage.delete(pbg_checkpoint.embeddings_uri(old.path, *key, old.version))
        if not shares:
            return
        if self.shared.path != self.checkpoint_path:
            self._old_shared.add(self.shared)
        self.shared = new

    def forget_shared(self, shared_keys: Iterable[Key], in_use: set[Place]) -> None:
        """Delete what is shared where a newer one has replaced it, but for those that are still read."""
        keys = list(shared_keys)
        for place in self._old_shared - in_use:
            for key in keys:
                storage.delete(pbg_checkpoint.embeddings_uri(place.path, *key, place.version))
            storage.delete(pbg_checkpoint.model_uri(place.path, place.version))
        self._old_shared &= in_use

    def complete(self, shared_keys: Iterable[Key]) -> None:
        """Give the newest files their names in the checkpoint: the next version, not yet committed."""
        version = self.version + 1
        places = self._of | dict.fromkeys(shared_keys, self.shared)
        for key, place in sorted(places.items()):
            source = pbg_checkpoint.embeddings_uri(place.path, *key, version)
            storage.move(source, pbg_checkpoint.embeddings_uri(self.checkpoint_path, *key, version))
        source = pbg_checkpoint.model_uri(self.shared.path, version)
        storage.move(source, pbg_checkpoint.model_uri(self.checkpoint_path, version))

    def committed(self) -> None:
        """The next version counts."""
        self.version += 1
        self._revision |= {key: place.revision for key, place in self._of.items()}
        self._of = {}
        self._committed = Place(0, self.checkpoint_path, self.version)
        self.shared = self._committed._replace(revision=self.shared.revision)
        self._old_shared = set()
        storage.delete(self._folder)
