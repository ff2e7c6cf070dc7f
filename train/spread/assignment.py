"""Which bucket a worker may train next: no two that are being trained share a partition.

    dynamic      whichever bucket shares no partition with those being trained, best one that shares some
                 with the worker's last; the result depends on who was faster
    tournament   fixed rounds of such buckets; a round starts from what the last one ended with, so that
                 the result depends on the number of buckets in a round alone

In the very first iteration a bucket has to wait until one of its partitions has been trained, so that all
partitions grow out of one and lie in one space.

Source: PyTorch-BigGraph's lock server (arXiv:1903.12287, section 4.2).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from graphmill.vocab import Bucket
from train.edges.schedule import Key

Keys = Callable[[Bucket], set[Key]]  # the partitions that a bucket must have for itself


class Assignment(Protocol):
    """The buckets of one iteration."""

    def next_bucket(self, last: Bucket | None) -> Bucket | None:
        """Take a bucket for a worker whose last one was `last`; None if there is none at the moment."""

    def may_publish(self, bucket: Bucket) -> bool:
        """Whether it is the bucket's turn to publish what it changed of what all buckets share."""

    def commit(self, bucket: Bucket) -> bool:
        """Note that a bucket is done; whether the next ones start from what is published by now."""

    def give_back(self, bucket: Bucket) -> None:
        """Note that a bucket's worker was lost: it is to be trained by another one."""

    @property
    def together(self) -> Sequence[Bucket]:
        """The buckets that publish together where they can, in order."""

    @property
    def finished(self) -> bool:
        """Whether all buckets are done."""


class Dynamic:
    """Buckets as workers ask for them."""

    def __init__(self, order: Sequence[Bucket], keys: Keys, *, from_one: bool) -> None:
        """`from_one` makes all but the first bucket wait for a partition that has been trained."""
        self._keys = keys
        self._left = dict.fromkeys(order)
        self._taken: dict[Bucket, None] = {}
        self._trained: set[Key] | None = set() if from_one else None

    def next_bucket(self, last: Bucket | None) -> Bucket | None:
        """Of those that are free, one that shares the most partitions with `last`."""
        busy = {key for bucket in self._taken for key in self._keys(bucket)}
        free = [bucket for bucket in self._left if busy.isdisjoint(self._keys(bucket))]
        if self._trained is not None and (self._trained or self._taken):
            grown = [bucket for bucket in free if not self._trained.isdisjoint(self._keys(bucket))]
            free = grown or (free if not self._taken else [])
        if not free:
            return None
        known = self._keys(last) if last is not None else set()
        bucket = max(free, key=lambda each: len(known & self._keys(each)))
        del self._left[bucket]
        self._taken[bucket] = None
        return bucket

    def may_publish(self, bucket: Bucket) -> bool:
        """First come, first served."""
        return True

    def commit(self, bucket: Bucket) -> bool:
        """Done; every bucket starts from the newest."""
        del self._taken[bucket]
        if self._trained is not None:
            self._trained |= self._keys(bucket)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """Left again, and the first in line."""
        del self._taken[bucket]
        self._left = {bucket: None, **self._left}

    @property
    def together(self) -> Sequence[Bucket]:
        """None wait for each other."""
        return ()

    @property
    def finished(self) -> bool:
        """Nothing left, nothing taken."""
        return not self._left and not self._taken


class Tournament:
    """Buckets in rounds."""

    def __init__(self, rounds: Sequence[Sequence[Bucket]]) -> None:
        self._rounds = [list(each) for each in rounds if each]
        self._taken: set[Bucket] = set()

    def next_bucket(self, last: Bucket | None) -> Bucket | None:
        """The first of the round that is left, whatever `last`: in this order they publish."""
        bucket = next((each for each in self._round() if each not in self._taken), None)
        if bucket is not None:
            self._taken.add(bucket)
        return bucket

    def may_publish(self, bucket: Bucket) -> bool:
        """In the order of the round."""
        return self._round()[0] == bucket

    def commit(self, bucket: Bucket) -> bool:
        """Done; what it has published counts from the next round on."""
        self._taken.remove(bucket)
        self._rounds[0].remove(bucket)
        if self._rounds[0]:
            return False
        self._rounds.pop(0)
        return True

    def give_back(self, bucket: Bucket) -> None:
        """To be taken again in the same round."""
        self._taken.remove(bucket)

    @property
    def together(self) -> Sequence[Bucket]:
        """What is left of the round."""
        return self._round()

    @property
    def finished(self) -> bool:
        """No round left."""
        return not self._rounds

    def _round(self) -> list[Bucket]:
        return self._rounds[0] if self._rounds else []


def rounds_of(order: Sequence[Bucket], keys: Keys, size: int, *, from_one: bool) -> list[list[Bucket]]:
    """All buckets in rounds of at most `size` that share no partition.

    Buckets with equal lhs + rhs (modulo the number of partitions) hardly share any: they are taken one
    such diagonal after another, in the order in which `order` meets them. With `from_one` a bucket also
    waits for a round that has trained one of its partitions.
    """
    num_diagonals = max(max(bucket) for bucket in order) + 1
    first: dict[int, int] = {}
    for number, bucket in enumerate(order):
        first.setdefault(sum(bucket) % num_diagonals, number)
    left = sorted(order, key=lambda bucket: first[sum(bucket) % num_diagonals])
    rounds: list[list[Bucket]] = []
    trained: set[Key] = set()
    while left:
        together: list[Bucket] = []
        busy: set[Key] = set()
        for bucket in left:
            grown = not from_one or (not rounds and not together) or not trained.isdisjoint(keys(bucket))
            if grown and len(together) < size and busy.isdisjoint(keys(bucket)):
                together.append(bucket)
                busy |= keys(bucket)
        together = together or left[:1]  # a part of the grid that has nothing to do with the rest
        trained |= {key for bucket in together for key in keys(bucket)}
        left = [bucket for bucket in left if bucket not in together]
        rounds.append(together)
    return rounds
