"""The order in which an iteration visits the buckets.

    inside_out   the L-shaped layers min(lhs, rhs) = k, the last first: partitions met late are learnt
                 against ones that are placed already
    outside_in   the same layers, the first first
    affinity     each bucket shares a partition with the one before, as long as such a one is left
    random       any order

In a layer, a bucket and its transpose follow each other; the rest is shuffled.

Where more partitions than a bucket's are in memory (`train.memory_partitions`), or go between the host and a
GPU, buckets come in an order of buffer elimination instead, which loads partitions about as seldom as
possible: all slots but one are held while every other partition passes through the last one, and then
never again.

Sources: PyTorch-BigGraph (arXiv:1903.12287, section 4.1); Marius' BETA (arXiv:2101.08358, section 4.1).
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import product

from graphmill.config import Config
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Side
from train.config import TrainConfig
from train.edges import seeds
from train.edges.partitions import PartitionKey, all_keys, keys_of


def order_of(config: Config, iteration: Iteration, device_slots: int | None = None) -> list[Bucket]:
    """The buckets of an iteration, in the order of the configuration, or one for slots on a device."""
    place = (iteration.epoch_idx, iteration.edge_path_idx, iteration.edge_chunk_idx)
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    seed = seeds.derived(config.seed, "order", *place)
    slots = device_slots or config.section(TrainConfig).memory_partitions
    if slots is not None:
        return elimination_order(num_lhs, num_rhs, slots, seed)
    return ordered_buckets(config.bucket_order, num_lhs, num_rhs, seed)


class Uses:
    """When each partition is needed next, in an iteration that visits the buckets in a known order."""

    def __init__(self, config: Config, order: Sequence[Bucket]) -> None:
        self._position = 0  # of the bucket that comes next
        self._places: dict[PartitionKey, list[int]] = {key: [] for key in all_keys(config)}
        for number, bucket in enumerate(order):
            for key in keys_of(config, bucket):
                self._places[key].append(number)

    def advance(self) -> None:
        """A bucket is entered: it no longer counts as one to come."""
        self._position += 1

    def is_left(self, key: PartitionKey) -> bool:
        """Whether a bucket to come needs it."""
        return self.next_of(key)[0] < math.inf

    def next_of(self, key: PartitionKey) -> tuple[float, PartitionKey]:
        """Sorts partitions by the bucket that needs them next; those that none needs come last."""
        places = self._places[key]
        later = bisect_left(places, self._position)
        return (places[later] if later < len(places) else math.inf), key


def ordered_buckets(order: str, num_lhs: int, num_rhs: int, seed: int) -> list[Bucket]:
    """All buckets of a grid of `num_lhs` x `num_rhs` partitions, each once."""
    return _ORDERS[order](num_lhs, num_rhs, random.Random(seed))


def elimination_order(num_lhs: int, num_rhs: int, slots: int, seed: int) -> list[Bucket]:
    """All buckets, each once, in an order that suits `slots` (at least two) partitions in memory."""
    left = list(range(max(num_lhs, num_rhs)))  # partitions that have not met all others
    random.Random(seed).shuffle(left)
    met: dict[Bucket, None] = {}
    held: list[int] = []

    def load(part: int) -> None:
        held.append(part)
        for other in held:
            for bucket in (Bucket(part, other), Bucket(other, part)):
                if bucket.lhs < num_lhs and bucket.rhs < num_rhs:
                    met[bucket] = None

    while left:
        anchors = left[: slots - 1]
        held = [part for part in held if part in anchors]
        for part in anchors:
            if part not in held:
                load(part)
        passing = left[slots - 1 :]
        for part in passing:
            held = [each for each in held if each in anchors]
            load(part)
        left = passing[-1:] + passing[:-1]  # the last one is still there
    return list(met)


def _shuffled(buckets: Sequence[Bucket], generator: random.Random) -> list[Bucket]:
    return generator.sample(buckets, len(buckets))


def _random(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    return _shuffled([Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))], generator)


def _affinity(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    left = _random(num_lhs, num_rhs, generator)
    # dicts: sets with an order, so that the same seed gives the same walk
    by_partition: dict[int, dict[Bucket, None]] = {part: {} for part in range(max(num_lhs, num_rhs))}
    for bucket in left:
        for part in bucket:
            by_partition[part][bucket] = None
    visited: dict[Bucket, None] = {}
    while len(visited) < len(left):
        last = next(reversed(visited), None)
        neighbours = [each for part in last or () for each in by_partition[part]]
        bucket = generator.choice(neighbours) if neighbours else next(b for b in left if b not in visited)
        visited[bucket] = None
        for part in bucket:
            by_partition[part].pop(bucket, None)
    return list(visited)


def _layers(num_lhs: int, num_rhs: int, generator: random.Random) -> list[list[Bucket]]:
    layers = []
    for layer in range(min(num_lhs, num_rhs)):
        groups = [[Bucket(layer, layer)]]
        for part in range(layer + 1, max(num_lhs, num_rhs)):
            pair = [Bucket(part, layer)] * (part < num_lhs) + [Bucket(layer, part)] * (part < num_rhs)
            groups.append(_shuffled(pair, generator))
        layers.append([bucket for group in generator.sample(groups, len(groups)) for bucket in group])
    return layers


def _outside_in(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    return [bucket for layer in _layers(num_lhs, num_rhs, generator) for bucket in layer]


def _inside_out(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    return [bucket for layer in reversed(_layers(num_lhs, num_rhs, generator)) for bucket in layer]


_ORDERS: dict[str, Callable[[int, int, random.Random], list[Bucket]]] = {
    "affinity": _affinity,
    "inside_out": _inside_out,
    "outside_in": _outside_in,
    "random": _random,
}
