"""The order in which an iteration visits the buckets.

    inside_out   the L-shaped layers min(lhs, rhs) = k, the last first: partitions met late are learnt
                 against ones that are placed already
    outside_in   the same layers, the first first
    affinity     each bucket shares a partition with the one before, as long as such a one is left
    random       any order

In a layer, a bucket and its transpose follow each other; the rest is shuffled.
Source: PyTorch-BigGraph (arXiv:1903.12287, section 4.1).
"""

import random
from collections.abc import Callable, Sequence
from itertools import product

from graphmill.vocab import Bucket


def ordered_buckets(order: str, num_lhs: int, num_rhs: int, seed: int) -> list[Bucket]:
    """All buckets of a grid of `num_lhs` x `num_rhs` partitions, each once."""
    return _ORDERS[order](num_lhs, num_rhs, random.Random(seed))


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
