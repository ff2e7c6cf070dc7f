"""Visits of an iteration: the order of buckets, and blocks of partitions that are trained together.

    inside_out   the L-shaped layers min(lhs, rhs) = k, from the last layer: late partitions train against
                 partitions that are trained already
    outside_in   the same layers, from the first layer
    affinity     each bucket shares a partition with the bucket before, while such a bucket is left
    random       any order

In a layer, a bucket and its transpose follow each other; otherwise the layer is shuffled. Where partitions
move between the host and a GPU, the order is buffer elimination, with almost the fewest loads.

Quality falls with the number of partitions, so training has as few as memory allows. It groups the partitions
of files to blocks, in every iteration to others, and visits every pair of blocks once. In a visit the rows of
both are one table, and the edges among them are one bucket. Rows of one block meet in more visits than others
(train/edges/own_rows.py).

    8 partitions, 4 blocks     in some iteration block 0 has partitions 5 and 2, block 1 has 0 and 7, ...
                               visit (0, 1) has the edges between the blocks, and a third of those inside each
    1 block                    visit (0, 0) has all edges

No import of torch: the client of a distributed run needs this module.

Sources: PyTorch-BigGraph (arXiv:1903.12287, section 4.1); Marius' BETA (arXiv:2101.08358, section 4.1).
"""

import math
import random
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import product

from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.edges.schedule import ChunkShare, Schedule

WHOLE = Bucket(0, 0)  # the only visit where there is one block


def order_of(config: Config, iteration: Iteration, device_slots: int | None = None) -> list[Bucket]:
    """Order the buckets of an iteration as the configuration says, or for slots on a device."""
    num_lhs, num_rhs = (config.num_side_partitions(side) for side in Side)
    seed = seeds.derived(config.seed, "order", *iteration.place)
    if device_slots is not None:
        return elimination_order(num_lhs, num_rhs, device_slots, seed)
    return ordered_buckets(config.bucket_order, num_lhs, num_rhs, seed)


class Uses:
    """The next use of each partition, in an iteration that visits the buckets in a known order."""

    def __init__(self, needed: Sequence[Collection[PartitionKey]]) -> None:
        """`needed` lists the partitions of each bucket."""
        self.position = 0  # position of the bucket that comes next
        self._positions: dict[PartitionKey, list[int]] = {}
        for number, keys in enumerate(needed):
            for key in keys:
                self._positions.setdefault(key, []).append(number)

    def advance(self) -> None:
        """Go on to the next bucket: the current bucket is no future use any more."""
        self.position += 1

    def is_left(self, key: PartitionKey) -> bool:
        """Tell whether a future bucket needs the partition."""
        return self.next_of(key)[0] < math.inf

    def next_of(self, key: PartitionKey) -> tuple[float, PartitionKey]:
        """Return a sort key: the position of the next bucket that needs the partition, or infinity."""
        positions = self._positions.get(key, [])
        later = bisect_left(positions, self.position)
        return (positions[later] if later < len(positions) else math.inf), key


def ordered_buckets(order: str, num_lhs: int, num_rhs: int, seed: int) -> list[Bucket]:
    """Order all buckets of a grid of `num_lhs` x `num_rhs` partitions."""
    generator = random.Random(seed)
    if order == "affinity":
        return _affinity(num_lhs, num_rhs, generator)
    if order == "random":
        return _random(num_lhs, num_rhs, generator)
    layers = _layers(num_lhs, num_rhs, generator)
    return [bucket for layer in (layers if order == "outside_in" else layers[::-1]) for bucket in layer]


def ordered_pairs(order: str, num_blocks: int, seed: int) -> list[Bucket]:
    """Order all pairs of different blocks, each once with the smaller first, by their buckets."""
    buckets = ordered_buckets(order, num_blocks, num_blocks, seed)
    return list(dict.fromkeys(Bucket(*sorted(bucket)) for bucket in buckets if bucket.lhs != bucket.rhs))


def elimination_order(num_lhs: int, num_rhs: int, slots: int, seed: int) -> list[Bucket]:
    """Order all buckets for `slots` (at least two) partitions in memory."""
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
            held = [kept for kept in held if kept in anchors]
            load(part)
        left = passing[-1:] + passing[:-1]  # the last partition is still in memory
    return list(met)


def _random(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    buckets = [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]
    return generator.sample(buckets, len(buckets))


def _affinity(num_lhs: int, num_rhs: int, generator: random.Random) -> list[Bucket]:
    left = _random(num_lhs, num_rhs, generator)
    of_partition: list[list[int]] = [[] for _ in range(max(num_lhs, num_rhs))]
    for position, bucket in enumerate(left):
        for part in set(bucket):
            of_partition[part].append(position)
    visited: dict[int, None] = {}
    rest = (position for position in range(len(left)) if position not in visited)
    one: list[int] = []
    two: list[int] = []  # buckets that share a partition with the last one
    while len(visited) < len(left):
        if num := len(one) + len(two):
            number = generator.randrange(num)
            position = one[number] if number < len(one) else two[number - len(one)]
        else:
            position = next(rest)
        visited[position] = None
        for part in set(left[position]):
            of_partition[part].pop(bisect_left(of_partition[part], position))
        one, two = (of_partition[part] for part in left[position])
    return [left[position] for position in visited]


def _layers(num_lhs: int, num_rhs: int, generator: random.Random) -> list[list[Bucket]]:
    layers = []
    for layer in range(min(num_lhs, num_rhs)):
        groups = [[Bucket(layer, layer)]]
        for part in range(layer + 1, max(num_lhs, num_rhs)):
            pair = [Bucket(part, layer)] * (part < num_lhs) + [Bucket(layer, part)] * (part < num_rhs)
            groups.append(generator.sample(pair, len(pair)))
        layers.append([bucket for group in generator.sample(groups, len(groups)) for bucket in group])
    return layers


class Blocks:
    """Groups of the partitions of a run."""

    def __init__(self, config: Config, schedule: Schedule, num: int) -> None:
        """`num` is the number of blocks; never 2, for one visit would have both."""
        self.num, self.config, self.schedule = num, config, schedule
        self.types = sorted({relation.entity_type(side) for relation in config.relations for side in Side})
        self._grouping = lru_cache(16)(self._grouped)

    def order(self, iteration: Iteration) -> list[Bucket]:
        """Order the visits of an iteration."""
        if self.num == 1:
            return [WHOLE]
        seed = seeds.derived(self.config.seed, "order", *iteration.place)
        return ordered_pairs(self.config.bucket_order, self.num, seed)

    def keys_of(self, visit: Bucket, iteration: Iteration) -> dict[PartitionKey, int | None]:
        """Partitions that a visit needs, in the order of their rows, and their block; None: of all visits."""
        entities = self.config.entities
        return {
            (name, partition): own
            for name in self.types
            for own in dict.fromkeys((None, *visit))
            for partition, block in enumerate(self._blocks(entities[name].num_partitions, iteration))
            if block == own
        }

    def starts(
        self, visit: Bucket, iteration: Iteration, num_rows: Mapping[str, Sequence[int]]
    ) -> dict[PartitionKey, int]:
        """First row of each partition in the table of its type, from the rows of all partitions."""
        starts, rows = {}, dict.fromkeys(self.types, 0)
        for name, partition in self.keys_of(visit, iteration):
            starts[name, partition] = rows[name]
            rows[name] += num_rows[name][partition]
        return starts

    def shares(self, visit: Bucket, iteration: Iteration) -> dict[Bucket, ChunkShare]:
        """The part that a visit trains on of each bucket file."""
        sides = []
        for side in Side:
            blocks = self._blocks(self.config.num_side_partitions(side), iteration)
            sides.append([(part, block) for part, block in enumerate(blocks) if block in (None, *visit)])
        chunk = self.schedule.share(iteration)
        shares = {}
        for (lhs, of_lhs), (rhs, of_rhs) in product(*sides):
            met = {of_lhs, of_rhs} - {None}
            own, other = visit if visit.lhs in met else (visit.rhs, visit.lhs)
            is_shared = self.num > 1 and len(met) < 2  # by all visits of a block
            part, num_parts = (other - (other > own), self.num - 1) if is_shared else (0, 1)
            shares[Bucket(lhs, rhs)] = chunk._replace(part=part, num_parts=num_parts)
        return shares

    def _blocks(self, num_partitions: int, iteration: Iteration) -> tuple[int | None, ...]:
        """The block of each partition in an iteration; None for what every visit has."""
        if num_partitions == 1:
            return (None,)
        return self._grouping(num_partitions, *iteration.place)

    def _grouped(self, num_partitions: int, *purpose: int) -> tuple[int, ...]:
        places = list(range(num_partitions))
        random.Random(seeds.derived(self.config.seed, "blocks", *purpose)).shuffle(places)
        return tuple(place * self.num // num_partitions for place in places)
