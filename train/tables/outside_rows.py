"""Rows of other partitions beside those of a visit (train/edges/visits.py), as further negatives.

A step compares edges with rows that are in memory. A query has edges in few buckets, so it would never meet
most partitions, and nothing would teach it that their entities are no answers. Therefore, where few rows are
in memory, some of every other partition are as well (`train.outside_rows`). Steps draw them as negatives and
move them as all others, with the sums of their optimizer.

    a partition comes     its rows in the sample are put back
    a partition leaves    the sample takes other rows of it, at random
    an iteration ends     all rows are back, so the files of the version have them; another sample begins

A row is either in its partition or in the sample, which then has its only valid copy. The sample of an
iteration depends on the version before and on the seed alone: a run that resumes reads it from files.

Shapes: N rows of a partition, K rows of it in the sample, D dimension.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.run import seeds
from train.step.step import Table

_MOST_ALONE = 5
"""Blocks, of which a visit has two: with so few, rows of a sample cost more quality than they bring."""


def outside_share(config: Config, num_blocks: int) -> float:
    """Outside rows of a visit, as a share of its own rows."""
    return config.train.outside_rows if num_blocks > _MOST_ALONE else 0.0


Sample = tuple[Tensor, Table]
"""Numbers of rows of one partition, int64 [K], and copies of the rows."""


class OutsideRows:
    """A sample of all partitions of the types that have several."""

    def __init__(self, seed: int, num_rows: Mapping[str, list[int]], share: float) -> None:
        """`share` is the share of a partition's rows that the sample has."""
        self._seed, self._num_rows = seed, num_rows
        self._sizes = {
            (name, partition): min(count, round(share * count))
            for name, counts in num_rows.items()
            if len(counts) > 1
            for partition, count in enumerate(counts)
        }
        self._now: dict[PartitionKey, Sample] = {}
        self._next: dict[PartitionKey, Sample] = {}  # the beginning of the next iteration's
        self._lent: list[tuple[Table, Table]] = []  # rows of the sample, and where steps move them

    def begin(self, version: int, load: Callable[[PartitionKey], Table]) -> None:
        """Begin the iteration after `version`; `load` reads partitions that have no sample yet."""
        self._now, self._next = self._next, {}
        for key in sorted(self._sizes.keys() - self._now.keys()):
            if self._sizes[key]:
                self._now[key] = self._taken(key, load(key), version)

    def put_back(self, key: PartitionKey, table: Table) -> None:
        """Put back the rows of a partition that is needed."""
        if key in self._now:
            table.fill(*self._now.pop(key))

    def take(self, key: PartitionKey, table: Table, version: int, visit: int | None = None) -> None:
        """Take rows of a partition for the iteration after `version`; for the current one at a `visit`."""
        if self._sizes.get(key) and (visit is None or key not in self._now):
            of, purpose = (self._next, [version]) if visit is None else (self._now, [version, visit])
            of[key] = self._taken(key, table, *purpose)

    def num_rows(self, name: str) -> int:
        """Count the rows of a type in the sample."""
        return sum(len(row_K) for key, (row_K, _) in self._now.items() if key[0] == name)

    def lend(self, name: str, table: Table) -> Table:
        """Copy the sample of a type to the last rows of a table; they are taken back later."""
        start = num_own = len(table) - self.num_rows(name)
        for key in sorted(self._now):
            if key[0] == name:
                sample = self._now[key][1]
                start, own = start + len(sample), slice(start, start + len(sample))
                table.fill(own, sample)
                self._lent.append((sample, table.rows(own)))
        return Table(table.embeddings_ND, table.sums, len(table) - num_own)

    def take_back(self) -> None:
        """Copy what steps have made of the rows back to the sample."""
        for sample, moved in self._lent:
            sample.fill(slice(None), moved)
        self._lent.clear()

    def _taken(self, key: PartitionKey, table: Table, *purpose: int) -> Sample:
        generator = seeds.generator(self._seed, "outside rows", *purpose, *key)
        row_K = torch.randperm(self._num_rows[key[0]][key[1]], generator=generator)[: self._sizes[key]]
        return row_K, table.rows(row_K)
