"""The next bucket of a worker: no two buckets that are trained at a time share a partition.

`dynamic` takes any such bucket, preferably one that shares partitions with the worker's last one, of two the
one that came last: the buckets of a worker form a path. `tournament` has fixed rounds of such buckets.

In the very first iteration a bucket waits until one of its partitions has been trained: all partitions grow
out of one partition and lie in one space.

Source: PyTorch-BigGraph's lock server (arXiv:1903.12287, section 4.2).
"""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from graphmill.config.partitions import PartitionKey
from graphmill.vocab import Bucket

PartitionsOf = Callable[[Bucket], Set[PartitionKey]]  # partitions that only one worker may have
Held = Mapping[PartitionKey, int]  # partitions that a worker has; a larger number came later

Numbers = npt.NDArray[np.int64]

_LEFT, _TAKEN, _DONE = range(3)  # states of a bucket


class Dynamic:
    """Hands out buckets as workers ask for them.

    Shapes: B buckets, K partitions of a bucket, N partitions and one more that stands for none, C candidates.
    """

    order: Sequence[Bucket] = ()  # that of training
    publish_group: Sequence[Bucket] = ()  # buckets do not wait for each other
    needs_files = False  # a bucket may be trained again, after others that were trained later

    def __init__(self, order: Sequence[Bucket], keys: PartitionsOf, *, from_one: bool) -> None:
        """`from_one`: all buckets but the first wait for a trained partition."""
        keys_of = [sorted(keys(bucket)) for bucket in order]
        names = {key: number for number, key in enumerate(sorted({key for own in keys_of for key in own}))}
        self._buckets, self._names = list(order), names
        self._numbers = {bucket: number for number, bucket in enumerate(order)}
        width = max(1, *map(len, keys_of))
        numbers = [[*(names[key] for key in own), *[len(names)] * (width - len(own))] for own in keys_of]
        self._keys_KB: Numbers = np.array(numbers).T.copy()  # rows are long, so numpy reduces them fast
        self._rank_B = np.arange(len(order))
        self._state_B = np.full(len(order), _LEFT)
        self._has_grown_B = np.full(len(order), not from_one)  # a partition has been trained

    def next_bucket(self, held: Held, likely: Bucket | None = None) -> Bucket | None:
        """Take the free bucket that shares most with `held`; that of the partition with most left."""
        left_B = self._state_B == _LEFT
        free_B = left_B & self._has_grown_B & ~self._count(_TAKEN)[self._keys_KB].any(0)
        if not free_B.any() and not (self._state_B == _TAKEN).any():
            free_B = left_B  # this part of the grid shares nothing with the rest
        return self._take_nearest(free_B, held)

    def reserve(self, last: Bucket, held: Held) -> Bucket | None:
        """Take a bucket that shares a partition with `last` and adds only partitions nobody has, or None."""
        taken_N = self._count(_TAKEN)
        is_own_N = np.zeros_like(taken_N)
        is_own_N[self._keys(last)] = 1
        is_own_KB = is_own_N[self._keys_KB]
        # It is free once `last`, the only bucket that takes these partitions, is done.
        near_B = (self._state_B == _LEFT) & is_own_KB.any(0) & (taken_N[self._keys_KB] == is_own_KB).all(0)
        return self._take_nearest(near_B, held)

    def likely_after(self, last: Bucket) -> Bucket | None:
        """None: the next bucket is promised, or depends on the other workers."""
        return None

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; returns whether buckets now start from newer shared state: always."""
        self._state_B[self._numbers[bucket]] = _DONE
        for key in self._keys(bucket):
            self._has_grown_B |= (self._keys_KB == key).any(0)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Hand out the bucket next: its worker was lost, in its middle or after it was done."""
        number = self._numbers[bucket]
        self._state_B[number], self._rank_B[number] = _LEFT, self._rank_B.min() - 1

    def part(self, bucket: Bucket, num_workers: int) -> tuple[float, float]:
        """Shares of all buckets that are done when a bucket begins, and when all workers have trained one."""
        num, num_done = len(self._buckets), int((self._state_B == _DONE).sum())
        return num_done / num, min(1.0, (num_done + num_workers) / num)

    @property
    def finished(self) -> bool:
        """Tell whether no bucket is left or taken."""
        return bool((self._state_B == _DONE).all())

    def _keys(self, bucket: Bucket) -> Numbers:
        """The partitions of a bucket, without the one that stands for none."""
        keys: Numbers = self._keys_KB[:, self._numbers[bucket]]
        return keys[keys < len(self._names)]

    def _count(self, state: int) -> Numbers:
        """Count the buckets of each partition that are left, taken or done, [N]."""
        count_N = np.bincount(
            self._keys_KB[:, self._state_B == state].ravel(), minlength=len(self._names) + 1
        )
        count_N[-1] = 0
        return count_N

    def _take_nearest(self, may_B: npt.NDArray[np.bool_], held: Held) -> Bucket | None:
        came_N = np.zeros(len(self._names) + 1, np.int64)
        for name, came in held.items():
            if name in self._names:
                came_N[self._names[name]] = came + 1
        near_B = may_B & came_N[self._keys_KB].any(0)
        candidates_C = np.flatnonzero(near_B if near_B.any() else may_B)  # fewer are sorted faster
        if not len(candidates_C):
            return None
        keys_KC = self._keys_KB[:, candidates_C]
        came_KC = came_N[keys_KC]
        num_left_C = np.where(came_KC > 0, 0, self._count(_LEFT)[keys_KC]).max(0)
        num_shared_C = (came_KC > 0).sum(0)
        order = (self._rank_B[candidates_C], -num_left_C, -came_KC.max(0), -num_shared_C)
        number = int(candidates_C[np.lexsort(order)[0]])
        self._state_B[number] = _TAKEN
        return self._buckets[number]


class Tournament:
    """Hands out buckets in rounds."""

    needs_files = True  # a bucket is never trained again once it is done: the result would be another

    def __init__(self, rounds: Sequence[Sequence[Bucket]]) -> None:
        self.order: Sequence[Bucket] = [bucket for of_round in rounds for bucket in of_round]
        self._rounds = [list(of_round) for of_round in rounds if of_round]
        self._places = {bucket: place for of_round in rounds for place, bucket in enumerate(of_round)}
        self._ends = [0, *accumulate(map(len, self._rounds))]  # of rounds that are left, and of one before
        self._taken: set[Bucket] = set()

    def next_bucket(self, held: Held, likely: Bucket | None = None) -> Bucket | None:
        """Take the likely bucket if it is free, or the round's first free one; groups reduce in order."""
        free = [bucket for bucket in self.publish_group if bucket not in self._taken]
        bucket = likely if likely in free else next(iter(free), None)
        if bucket is not None:
            self._taken.add(bucket)
        return bucket

    def reserve(self, last: Bucket, held: Held) -> Bucket | None:
        """None: the next round begins when this one has ended."""
        return None

    def likely_after(self, last: Bucket) -> Bucket | None:
        """The bucket at the same place of the next round; None if there is none."""
        following = self._rounds[1] if len(self._rounds) > 1 else []
        place = self._places[last]
        return following[place] if place < len(following) else None

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; returns whether it was the last of its round."""
        self._taken.remove(bucket)
        self._rounds[0].remove(bucket)
        if self._rounds[0]:
            return False
        self._rounds.pop(0)
        self._ends.pop(0)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Make the bucket free again in the same round."""
        self._taken.remove(bucket)

    def part(self, bucket: Bucket, num_workers: int) -> tuple[float, float]:
        """Shares of all buckets that are in rounds before that of a bucket, and in rounds up to it."""
        return self._ends[0] / self._ends[-1], self._ends[1] / self._ends[-1]

    @property
    def publish_group(self) -> Sequence[Bucket]:
        """The buckets that are left of the round, which publish together, in order."""
        return self._rounds[0] if self._rounds else []

    @property
    def finished(self) -> bool:
        """Tell whether no round is left."""
        return not self._rounds


Assignment = Dynamic | Tournament


def rounds_of(
    order: Sequence[Bucket], keys: PartitionsOf, size: int, *, from_one: bool
) -> list[list[Bucket]]:
    """All buckets in rounds of at most `size` that share no partition.

    Buckets with equal lhs + rhs (modulo the number of partitions) hardly share partitions. They are taken
    diagonal by diagonal, in the order in which `order` meets the diagonals. With `from_one` a bucket also
    waits for a round that has trained one of its partitions.

    An order without buckets of one partition, as of pairs of blocks, has the rounds of a round-robin
    tournament: lhs + rhs modulo the number of partitions less one, where the last partition meets the one
    that would meet itself.
    """
    num = max(max(bucket) for bucket in order) + 1
    are_pairs = all(bucket.lhs != bucket.rhs for bucket in order)

    def diagonal(bucket: Bucket) -> int:
        if not are_pairs:
            return sum(bucket) % num
        last = num - 1 if num % 2 == 0 else num  # an odd number has one more, which stands for none
        other = min(bucket) if max(bucket) == last else max(bucket)
        return (min(bucket) + other) % last

    first: dict[int, int] = {}
    for number, bucket in enumerate(order):
        first.setdefault(diagonal(bucket), number)
    held = {bucket: frozenset(keys(bucket)) for bucket in order}
    left = dict.fromkeys(sorted(order, key=lambda bucket: first[diagonal(bucket)]))
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
