"""Partitions of a checkpoint that are held in memory: those that were asked for last."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from torch import Tensor

from graphmill.vocab import Partition
from train.edges.partitions import Location, PartitionKey
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext

Held = TypeVar("Held")


class HeldPartitions(Generic[Held]):
    """Partitions by key, read from files where the newest revision is not held.

    Training on several workers, evaluation and predictions hold partitions here; training on one worker,
    which reads ahead, has `train.tables.partition_store`.

    Attributes:
        num_read: partitions read so far.
    """

    def __init__(self, load: Callable[[PartitionKey, Location], Held]) -> None:
        """`load` reads one partition."""
        self.num_read = 0
        self._load = load
        self._partitions: dict[PartitionKey, Held] = {}
        self._revisions: dict[PartitionKey, int] = {}  # not those of partitions in training

    def hold(self, locations: Mapping[PartitionKey, Location]) -> Mapping[PartitionKey, Held]:
        """The partitions at `locations`; all others are dropped before the first one is read."""
        for key in list(self._partitions):
            if key not in locations or self._revisions.get(key) != locations[key].revision:
                del self._partitions[key]
        for key in sorted(locations.keys() - self._partitions.keys()):
            self._partitions[key] = self._load(key, locations[key])
            self._revisions[key] = locations[key].revision
            self.num_read += 1
        return self._partitions

    def begin_training(self, keys: Iterable[PartitionKey]) -> None:
        """Training changes these partitions: until `end_training` they are of no revision."""
        for key in keys:
            del self._revisions[key]

    def end_training(self, keys: Iterable[PartitionKey], revision: int) -> None:
        """The partitions have been written as `revision`."""
        self._revisions |= dict.fromkeys(keys, revision)


def load_embeddings_of(context: RunContext) -> Callable[[str, Partition], Tensor]:
    """A function that gives the checkpoint's embeddings of a partition, and holds one partition at a time.

    The embeddings are [N, D] in the host's memory.
    """
    files = PartitionFiles(context)
    held = HeldPartitions(lambda key, location: files.load_embeddings(key, location.version))
    location = Location(0, context.config.checkpoint_path, context.version)

    def load(entity_type: str, partition: Partition) -> Tensor:
        key = entity_type, partition
        return held.hold({key: location})[key]

    return load
