"""The next bucket of a worker: no two buckets that are trained at a time share a partition.

    dynamic      any bucket that shares no partition with those in training, preferably one that shares
                 partitions with the worker's last bucket; the result depends on the workers' speeds
    tournament   fixed rounds of such buckets; a round starts from the end of the round before, so the
                 result depends only on the number of buckets in a round

In the very first iteration a bucket waits until one of its partitions has been trained: all partitions grow
out of one partition and lie in one space.

Source: PyTorch-BigGraph's lock server (arXiv:1903.12287, section 4.2).
"""

from collections.abc import Callable, Sequence

from graphmill.vocab import Bucket
from train.edges.partitions import PartitionKey

PartitionsOf = Callable[[Bucket], set[PartitionKey]]  # partitions that only one worker may have


class Dynamic:
    """Hands out buckets as workers ask for them."""

    publish_group: Sequence[Bucket] = ()  # buckets do not wait for each other

    def __init__(self, order: Sequence[Bucket], keys: PartitionsOf, *, from_one: bool) -> None:
        """`from_one` makes all but the first bucket wait for a partition that has been trained."""
        self._keys = keys
        self._left = list(order)
        self._taken: set[Bucket] = set()
        self._trained: set[PartitionKey] | None = set() if from_one else None

    def next_bucket(self, last: Bucket | None) -> Bucket | None:
        """Take the free bucket that shares the most partitions with `last`; None if none is free."""
        busy = {key for bucket in self._taken for key in self._keys(bucket)}
        free = [bucket for bucket in self._left if busy.isdisjoint(self._keys(bucket))]
        if self._trained is not None and (self._trained or self._taken):
            grown = [bucket for bucket in free if not self._trained.isdisjoint(self._keys(bucket))]
            free = grown or (free if not self._taken else [])
        if not free:
            return None
        known = self._keys(last) if last is not None else set()
        bucket = max(free, key=lambda each: len(known & self._keys(each)))
        self._left.remove(bucket)
        self._taken.add(bucket)
        return bucket

    def may_publish(self, bucket: Bucket) -> bool:
        """Whether it is the bucket's turn to publish its changes of the shared state: always."""
        return True

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; returns whether buckets now start from newer shared state: always."""
        self._taken.remove(bucket)
        if self._trained is not None:
            self._trained |= self._keys(bucket)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Hand out the bucket next: its worker was lost."""
        self._taken.remove(bucket)
        self._left.insert(0, bucket)

    @property
    def finished(self) -> bool:
        """Whether no bucket is left or taken."""
        return not self._left and not self._taken


class Tournament:
    """Hands out buckets in rounds."""

    def __init__(self, rounds: Sequence[Sequence[Bucket]]) -> None:
        self._rounds = [list(each) for each in rounds if each]
        self._taken: set[Bucket] = set()

    def next_bucket(self, last: Bucket | None) -> Bucket | None:
        """Take the round's first free bucket, whatever `last` is: buckets publish in this order."""
        bucket = next((each for each in self.publish_group if each not in self._taken), None)
        if bucket is not None:
            self._taken.add(bucket)
        return bucket

    def may_publish(self, bucket: Bucket) -> bool:
        """Whether the bucket is the first that is left of the round."""
        return self.publish_group[0] == bucket

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; returns whether it was the last of its round."""
        self._taken.remove(bucket)
        self._rounds[0].remove(bucket)
        if self._rounds[0]:
            return False
        self._rounds.pop(0)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Make the bucket free again in the same round."""
        self._taken.remove(bucket)

    @property
    def publish_group(self) -> Sequence[Bucket]:
        """The buckets that are left of the round, which publish together, in order."""
        return self._rounds[0] if self._rounds else []

    @property
    def finished(self) -> bool:
        """Whether no round is left."""
        return not self._rounds


Assignment = Dynamic | Tournament


def rounds_of(
    order: Sequence[Bucket], keys: PartitionsOf, size: int, *, from_one: bool
) -> list[list[Bucket]]:
    """All buckets in rounds of at most `size` that share no partition.

    Buckets with equal lhs + rhs (modulo the number of partitions) hardly share partitions. They are taken
    diagonal by diagonal, in the order in which `order` meets the diagonals. With `from_one` a bucket also
    waits for a round that has trained one of its partitions.
    """
    num_diagonals = max(max(bucket) for bucket in order) + 1
    first: dict[int, int] = {}
    for number, bucket in enumerate(order):
        first.setdefault(sum(bucket) % num_diagonals, number)
    left = sorted(order, key=lambda bucket: first[sum(bucket) % num_diagonals])
    rounds: list[list[Bucket]] = []
    trained: set[PartitionKey] = set()
    while left:
        together: list[Bucket] = []
        busy: set[PartitionKey] = set()
        for bucket in left:
            grown = not from_one or (not rounds and not together) or not trained.isdisjoint(keys(bucket))
            if grown and len(together) < size and busy.isdisjoint(keys(bucket)):
                together.append(bucket)
                busy |= keys(bucket)
        together = together or left[:1]  # this part of the grid shares nothing with the rest
        trained |= {key for bucket in together for key in keys(bucket)}
        left = [bucket for bucket in left if bucket not in together]
        rounds.append(together)
    return rounds
