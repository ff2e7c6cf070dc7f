"""The newest file of every partition, and of the state that all buckets share.

    checkpoint_path/
      embeddings_{type}_{part}.v{V}.h5, model.v{V}.h5       the committed version
      .spread.tmp-{run}/{grant}/                            files of one bucket, for version V + 1:
        embeddings_{type}_{part}.v{V+1}.h5, model.v{V+1}.h5   its partitions, and the shared state

A grant is the permission to train a bucket once; its number is never used again. A worker's files count
once the coordinator publishes them, all at once: a worker that is lost, or thought to be lost, leaves files
that nobody reads. When all buckets are done, the newest files are renamed to be the next version.
"""

import uuid
from collections.abc import Iterable

from graphmill import storage
from graphmill.config import Config
from graphmill.formats import pbg_checkpoint
from train.edges.partitions import Location, PartitionKey, all_keys, is_shared


class PartitionLocations:
    """The locations of one run's newest files.

    Attributes:
        shared: location of the newest shared state.
    """

    def __init__(self, config: Config, version: int) -> None:
        self.checkpoint_path, self.version = config.checkpoint_path, version
        self._shared_keys = [key for key in all_keys(config) if is_shared(config, key)]
        self._folder = storage.join(self.checkpoint_path, f".spread.tmp-{uuid.uuid4().hex[:12]}")
        self._committed = Location(0, self.checkpoint_path, version)
        self._newest: dict[PartitionKey, Location] = {}
        self._revision: dict[PartitionKey, int] = {}  # revisions of committed files
        self.shared = self._committed
        self._old_shared: set[Location] = set()

    def of(self, key: PartitionKey) -> Location:
        """The location of a partition."""
        return self._newest.get(key) or self._committed._replace(revision=self._revision.get(key, 0))

    def folder(self, grant: int) -> str:
        """The folder that a grant's bucket writes to."""
        return storage.join(self._folder, str(grant))

    def publish(self, grant: int, keys: Iterable[PartitionKey], *, shares: bool = True) -> None:
        """Make the files of a grant the newest: those of `keys`, and with `shares` the shared state."""
        new = Location(grant, self.folder(grant), self.version + 1)
        for key in keys:
            old = self._newest.get(key)
            self._newest[key] = new
            if old is not None:
                storage.delete(pbg_checkpoint.embeddings_uri(old.path, *key, old.version))
        if shares:
            if self.shared.path != self.checkpoint_path:
                self._old_shared.add(self.shared)
            self.shared = new

    def forget_shared(self, in_use: set[Location]) -> None:
        """Delete shared states that a newer one has replaced, except those `in_use`."""
        for location in self._old_shared - in_use:
            for key in self._shared_keys:
                storage.delete(pbg_checkpoint.embeddings_uri(location.path, *key, location.version))
            storage.delete(pbg_checkpoint.model_uri(location.path, location.version))
        self._old_shared &= in_use

    def complete(self) -> None:
        """Rename the newest files to be the next version, which is not committed yet."""
        version = self.version + 1
        locations = self._newest | dict.fromkeys(self._shared_keys, self.shared)
        for key, location in sorted(locations.items()):
            source = pbg_checkpoint.embeddings_uri(location.path, *key, version)
            storage.move(source, pbg_checkpoint.embeddings_uri(self.checkpoint_path, *key, version))
        source = pbg_checkpoint.model_uri(self.shared.path, version)
        storage.move(source, pbg_checkpoint.model_uri(self.checkpoint_path, version))

    def committed(self) -> None:
        """Note that the next version is committed."""
        self.version += 1
        self._revision |= {key: location.revision for key, location in self._newest.items()}
        self._newest = {}
        self._committed = Location(0, self.checkpoint_path, self.version)
        self.shared = self._committed._replace(revision=self.shared.revision)
        self._old_shared = set()
        storage.delete(self._folder)
