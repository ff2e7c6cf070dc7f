"""The copies of every partition, in workers' memory and in files; the files of the shared state.

    checkpoint_path/
      embeddings_{type}_{part}.v{V}.h5, model.v{V}.h5       the committed version
      .spread.tmp-{run}/v{V+1}/{grant}/                     files of one grant, for version V + 1:
        embeddings_{type}_{part}.v{V+1}.h5, model.v{V+1}.h5   partitions, and the shared state

A grant is the permission to train a bucket once, or to write partitions; its number is never used again. The
grant that trained a partition is the partition's revision (docs/explanation/distributed_training.md).

A worker's files count once the coordinator has heard of them: a worker that is thought to be lost leaves
files that nobody reads. When all buckets are done and all newest revisions are in files, these are renamed to
be the next version.
"""

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_keys, is_shared
from graphmill.storage import Checksums
from train.distributed.messages import PartitionCopies, SavedFile

NUM_RENAMES = 8  # at a time


class PartitionLocations:
    """The copies of one run's partitions."""

    def __init__(self, config: Config, version: int) -> None:
        self.checkpoint_path, self.version = config.checkpoint_path, version
        self._shared_keys = [key for key in all_keys(config) if is_shared(config, key)]
        self._folder = storage.join(self.checkpoint_path, f".spread.tmp-{uuid.uuid4().hex[:12]}")
        self.shared_folder: str | None = None  # of the shared state's files of the next version, once written
        committed = SavedFile(0, self.checkpoint_path, version, "", is_replicated=True)
        # Of every partition, from the newest revision that is in a file to the newest revision.
        self._copies: dict[PartitionKey, list[PartitionCopies]] = {
            key: [PartitionCopies(0, file=committed)]
            for key in all_keys(config)
            if not is_shared(config, key)
        }
        self._held: dict[str, set[PartitionKey]] = {}  # partitions that a holder may have
        self._storage = ThreadPoolExecutor(NUM_RENAMES, "checkpoint")

    def source(self, key: PartitionKey) -> PartitionCopies:
        """The copies of the newest revision of a partition."""
        return self._copies[key][-1]

    def folder(self, grant: int) -> str:
        """The folder that a grant's files are written to."""
        return storage.join(self._folder, f"v{self.version + 1}", str(grant))

    def publish(self, grant: int, keys: Iterable[PartitionKey], holder: str, address: str) -> None:
        """Note the revision `grant` of partitions, in the memory of a worker."""
        for key in keys:
            self._copies[key].append(PartitionCopies(grant, holder, address))
            self._held.setdefault(holder, set()).add(key)

    def saved(self, key: PartitionKey, saved: SavedFile) -> None:
        """Note that a revision is in a file; older copies are of no use any more."""
        copies = self._copies[key]
        number = next((n for n, copy in enumerate(copies) if copy.revision == saved.revision), None)
        if number is None:  # a newer one is in a file already, or the revision was given up
            self._delete_file(key, saved)
            return
        for old in copies[:number]:
            self._delete_file(key, old.file)
        before = copies[number].file
        if before and (before.folder, before.version) != (saved.folder, saved.version):
            self._delete_file(key, before)
        copies[: number + 1] = [copies[number]._replace(file=saved)]

    def lose(self, holder: str) -> set[int]:
        """Forget the memory of a lost worker; return revisions that were newer than all that is left."""
        lost: set[int] = set()
        for key in self._held.pop(holder, set()):
            copies = self._copies[key]
            revisions = {copy.revision for copy in copies}
            kept = (copy for copy in copies if copy.holder != holder or copy.file is not None)
            left = [copy._replace(holder="", address="") if copy.holder == holder else copy for copy in kept]
            self._copies[key] = left
            lost |= {revision for revision in revisions if revision > left[-1].revision}
        return lost

    def unsaved(self) -> Iterator[tuple[PartitionKey, PartitionCopies]]:
        """The partitions whose newest revision is in no file of the next version, with all its copies.

        A file with one copy is enough where no worker has the revision in memory any more, or where storage
        does not replicate files.
        """
        replicates = storage.replicates(self.checkpoint_path)
        for key, copies in self._copies.items():
            newest, file = copies[-1], copies[-1].file
            is_next = file is not None and file.version > self.version
            if not is_next or (replicates and newest.holder and file and not file.is_replicated):
                yield key, newest

    def is_complete(self) -> bool:
        """Tell whether the shared state and all newest revisions are in files of the next version."""
        return self.shared_folder is not None and next(self.unsaved(), None) is None

    def complete(self) -> Checksums:
        """Rename the newest files to the next version, not committed yet; return checksums by name."""
        version, target = self.version + 1, self.checkpoint_path
        files = {key: file for key, copies in self._copies.items() if (file := copies[-1].file)}
        names = {key: storage.name(pbg.embeddings_uri("", *key, version)) for key in files}
        checksums = {name: files[key].checksum for key, name in names.items()}
        shared = SavedFile(0, self.shared_folder or target, version, "", is_replicated=True)
        files |= dict.fromkeys(self._shared_keys, shared)
        list(self._storage.map(self._rename, files.items()))
        storage.move(pbg.model_uri(shared.folder, version), pbg.model_uri(target, version))
        return checksums

    def _rename(self, entry: tuple[PartitionKey, SavedFile]) -> None:
        key, file = entry
        target = pbg.embeddings_uri(self.checkpoint_path, *key, self.version + 1)
        storage.move(pbg.embeddings_uri(file.folder, *key, self.version + 1), target)
        if not file.is_replicated:
            storage.replicate(target)

    def committed(self) -> None:
        """Note that the next version is committed."""
        self._storage.submit(storage.delete, storage.parent(self.folder(0)))
        self.version += 1
        for copies in self._copies.values():
            newest = copies[-1]
            file = SavedFile(newest.revision, self.checkpoint_path, self.version, "", is_replicated=True)
            copies[:] = [newest._replace(file=file)]
        self.shared_folder = None

    def close(self) -> None:
        """Delete the files that no version has."""
        self._storage.shutdown(wait=True)
        storage.delete(self._folder)

    def _delete_file(self, key: PartitionKey, file: SavedFile | None) -> None:
        """Delete a file in the background, unless it is one of the committed version."""
        if file is not None and file.folder != self.checkpoint_path:
            uri = pbg.embeddings_uri(file.folder, *key, file.version)
            self._storage.submit(storage.delete, uri)
