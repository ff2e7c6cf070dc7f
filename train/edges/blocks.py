"""Blocks: partitions of files that are trained together.

Quality falls with the number of partitions, so training has as few as memory allows. It groups the partitions
of files to blocks, and visits every pair of blocks. In a visit the rows of both are one table, and the edges
among them are one bucket. Few blocks have two passes over all pairs, with half of every bucket's edges each:
few long visits cost quality too. Every pass groups the partitions in another way. Queries of all_negs have
one pass: a query costs as much in a visit, however few of its edges are there.

    8 partitions, 4 blocks     in some pass block 0 has partitions 5 and 2, block 1 has 0 and 7, ...
                               visit (0, 1) has half of the edges between the blocks; the three visits of a
                               block share half of those inside it; in the second pass visits are (1, 0), ...
    1 block                    visit (0, 0) has all edges

No import of torch: the client of a distributed run needs this module.
"""

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from train.edges.bucket_order import num_passes, ordered_pairs
from train.edges.schedule import ChunkShare, Schedule

WHOLE = Bucket(0, 0)  # the only visit where there is one block


class Blocks:
    """Groups of the partitions of a run, with some passes over all pairs in an iteration."""

    def __init__(self, config: Config, schedule: Schedule, num: int) -> None:
        """`num` is the number of blocks; never 2, for one visit would have both."""
        self.num, self.config, self.schedule = num, config, schedule
        self.passes = 1 if any(relation.all_negs for relation in config.relations) else num_passes(num)
        self.types = sorted({relation.entity_type(side) for relation in config.relations for side in Side})
        self._grouping = lru_cache(16)(self._grouped)

    def order(self, iteration: Iteration) -> list[Bucket]:
        """Order the visits of an iteration."""
        return [visit for order in self.orders(iteration) for visit in order]

    def orders(self, iteration: Iteration) -> list[list[Bucket]]:
        """Order the visits of each pass; those of the second pass have the larger block first."""
        if self.num == 1:
            return [[WHOLE]]
        passes = []
        for number in range(self.passes):
            seed = seeds.derived(self.config.seed, "order", *iteration.place, number)
            passes.append(ordered_pairs(self.config.bucket_order, self.num, seed, larger_first=bool(number)))
        return passes

    def keys_of(self, visit: Bucket, iteration: Iteration) -> list[PartitionKey]:
        """Partitions of all types that a visit needs, in the order of their rows in its tables."""
        return [
            (name, partition)
            for name in self.types
            for partition, block in enumerate(
                self._blocks(self.config.entities[name].num_partitions, visit, iteration)
            )
            if block in (None, *visit)
        ]

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
            blocks = self._blocks(self.config.num_side_partitions(side), visit, iteration)
            sides.append([(part, block) for part, block in enumerate(blocks) if block in (None, *visit)])
        chunk = self.schedule.share(iteration)
        shares = {}
        for (lhs, of_lhs), (rhs, of_rhs) in product(*sides):
            turn, visits = self._turn(visit, {of_lhs, of_rhs} - {None})
            shares[Bucket(lhs, rhs)] = chunk._replace(part=turn, num_parts=visits)
        return shares

    def _turn(self, visit: Bucket, blocks: set[int | None]) -> tuple[int, int]:
        """Number of a visit among all visits that have edges of these blocks, and how many there are."""
        if self.num == 1:
            return 0, 1
        number = int(visit.lhs > visit.rhs)  # of the pass
        if len(blocks) == 2:
            return number, self.passes
        own, other = visit if visit.lhs in blocks else (visit.rhs, visit.lhs)
        shares = self.num - 1
        return number * shares + other - (other > own), self.passes * shares

    def _blocks(self, num_partitions: int, visit: Bucket, iteration: Iteration) -> tuple[int | None, ...]:
        """The block of each partition in the pass of a visit; None for what every visit has."""
        if num_partitions == 1:
            return (None,)
        return self._grouping(num_partitions, *iteration.place, visit.lhs > visit.rhs)

    def _grouped(self, num_partitions: int, *purpose: int) -> tuple[int, ...]:
        places = list(range(num_partitions))
        random.Random(seeds.derived(self.config.seed, "blocks", *purpose)).shuffle(places)
        return tuple(place * self.num // num_partitions for place in places)
