"""The next bucket of a worker: no two buckets that are trained at a time share a partition.

    dynamic      any bucket that shares no partition with those in training, preferably one that shares
                 partitions with the worker's last bucket, of two the one that came last: the buckets of a
                 worker form a path; the result depends on the workers' speeds
    tournament   fixed rounds of such buckets; a round starts from the end of the round before, so the
                 result depends only on the number of buckets in a round

In the very first iteration a bucket waits until one of its partitions has been trained: all partitions grow
out of one partition and lie in one space.

Source: PyTorch-BigGraph's lock server (arXiv:1903.12287, section 4.2).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from graphmill.vocab import Bucket
from train.edges.partitions import PartitionKey

PartitionsOf = Callable[[Bucket], Set[PartitionKey]]  # partitions that only one worker may have
Held = Mapping[PartitionKey, int]  # partitions that a worker has; a larger number came later

NOTHING: Held = {}


class Dynamic:
    """Hands out buckets as workers ask for them.

    A grant costs time for the buckets of the partitions that it takes or frees, not for all buckets.
    """

    order: Sequence[Bucket] = ()  # that of training
    publish_group: Sequence[Bucket] = ()  # buckets do not wait for each other
    needs_files = False  # a bucket may be trained again, after others that were trained later

    def __init__(self, order: Sequence[Bucket], keys: PartitionsOf, *, from_one: bool) -> None:
        """`from_one` makes all but the first bucket wait for a partition that has been trained."""
        self._keys = {bucket: frozenset(keys(bucket)) for bucket in order}
        self._rank = {bucket: number for number, bucket in enumerate(order)}
        self._taken: set[Bucket] = set()
        self._busy: Counter[PartitionKey] = Counter()  # buckets that are taken, by partition
        self._trained: set[PartitionKey] | None = set() if from_one else None
        # Of the buckets that are left: those of a partition, how many things each of them waits for, those
        # that wait for nothing. A bucket waits for each taken bucket of each of its partitions.
        self._left_of: dict[PartitionKey, set[Bucket]] = defaultdict(set)
        self._num_waits: dict[Bucket, int] = {}
        self._free: set[Bucket] = set()
        for bucket in order:
            self._leave(bucket)

    def next_bucket(self, held: Held) -> Bucket | None:
        """Take the free bucket that shares the most with what a worker has; None if none is free.

        Of equal ones it takes that of the partition with the most buckets left, then the first: so that
        until the end of the iteration there are buckets for all workers.
        """
        free = self._free if self._free or self._taken else self._num_waits.keys()
        if not free:
            return None
        near = {each for key in held for each in self._left_of[key] if each in free}
        bucket = self._nearest(near or free, held)
        self._take(bucket)
        return bucket

    def reserve(self, last: Bucket, held: Held) -> Bucket | None:
        """Take the bucket that the worker of `last` trains next; None if none shares a partition with it.

        Nobody else gets the partitions that it adds, which nobody has now.
        """
        own = self._keys[last]
        near = {each for key in own for each in self._left_of[key] if self._waits_only_for(each, own)}
        if not near:
            return None
        bucket = self._nearest(near, held)
        self._take(bucket)
        return bucket

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; returns whether buckets now start from newer shared state: always."""
        self._release(bucket)
        if self._trained is not None:
            for key in self._keys[bucket]:
                self._note_trained(key, self._trained)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Hand out the bucket next: its worker was lost, in its middle or after it was done."""
        if bucket in self._taken:
            self._release(bucket)
        self._rank[bucket] = min(self._rank.values()) - 1
        self._leave(bucket)

    @property
    def finished(self) -> bool:
        """Whether no bucket is left or taken."""
        return not self._num_waits and not self._taken

    def _nearest(self, buckets: Iterable[Bucket], held: Held) -> Bucket:
        def distance(bucket: Bucket) -> tuple[int, int, int, int]:
            keys = self._keys[bucket]
            shared = [held[key] for key in keys if key in held]
            num_left = max((len(self._left_of[key]) for key in keys if key not in held), default=0)
            return -len(shared), -max(shared, default=0), -num_left, self._rank[bucket]

        return min(buckets, key=distance)

    def _waits_only_for(self, bucket: Bucket, own: frozenset[PartitionKey]) -> bool:
        """Whether the bucket is free once the only bucket that takes the partitions `own` is done."""
        num_own = sum(key in own for key in self._keys[bucket])
        return self._num_waits[bucket] == num_own + self._waits_to_grow(bucket)

    def _waits_to_grow(self, bucket: Bucket) -> bool:
        return self._trained is not None and self._trained.isdisjoint(self._keys[bucket])

    def _leave(self, bucket: Bucket) -> None:
        """Add a bucket to those that are left."""
        for key in self._keys[bucket]:
            self._left_of[key].add(bucket)
        num_busy = sum(self._busy[key] for key in self._keys[bucket])
        self._num_waits[bucket] = num_busy + self._waits_to_grow(bucket)
        if not self._num_waits[bucket]:
            self._free.add(bucket)

    def _take(self, bucket: Bucket) -> None:
        self._taken.add(bucket)
        del self._num_waits[bucket]
        self._free.discard(bucket)
        for key in self._keys[bucket]:
            self._busy[key] += 1
            self._left_of[key].discard(bucket)
            for other in self._left_of[key]:
                self._num_waits[other] += 1
            self._free -= self._left_of[key]

    def _release(self, bucket: Bucket) -> None:
        self._taken.remove(bucket)
        for key in self._keys[bucket]:
            self._busy[key] -= 1
            for other in self._left_of[key]:
                self._has_one_less(other)

    def _note_trained(self, key: PartitionKey, trained: set[PartitionKey]) -> None:
        if key not in trained:
            for other in self._left_of[key]:
                if trained.isdisjoint(self._keys[other]):
                    self._has_one_less(other)
            trained.add(key)

    def _has_one_less(self, bucket: Bucket) -> None:
        """Note that the bucket waits for one thing less."""
        self._num_waits[bucket] -= 1
        if not self._num_waits[bucket]:
            self._free.add(bucket)


class Tournament:
    """Hands out buckets in rounds."""

    needs_files = True  # a bucket is never trained again once it is done: the result would be another

    def __init__(self, rounds: Sequence[Sequence[Bucket]]) -> None:
        self.order: Sequence[Bucket] = [bucket for each in rounds for bucket in each]
        self._rounds = [list(each) for each in rounds if each]
        self._taken: set[Bucket] = set()

    def next_bucket(self, held: Held) -> Bucket | None:
        """Take the round's first free bucket, whatever a worker has: groups that reduce have this order."""
        bucket = next((each for each in self.publish_group if each not in self._taken), None)
        if bucket is not None:
            self._taken.add(bucket)
        return bucket

    def reserve(self, last: Bucket, held: Held) -> Bucket | None:
        """None: the next round begins when this one has ended."""
        return None

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
    held = {bucket: frozenset(keys(bucket)) for bucket in order}
    left = dict.fromkeys(sorted(order, key=lambda bucket: first[sum(bucket) % num_diagonals]))
    rounds: list[list[Bucket]] = []
    trained: set[PartitionKey] = set()
    while left:
        together: list[Bucket] = []
        busy: set[PartitionKey] = set()
        for bucket in left:
            grown = not from_one or (not rounds and not together) or not trained.isdisjoint(held[bucket])
            if grown and busy.isdisjoint(held[bucket]):
                together.append(bucket)
                busy |= held[bucket]
                if len(together) == size:
                    break
        together = together or [next(iter(left))]  # this part of the grid shares nothing with the rest
        for bucket in together:
            trained |= held[bucket]
            del left[bucket]
        rounds.append(together)
    return rounds
