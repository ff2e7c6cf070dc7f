"""Table of embeddings and optimizer state, which every step reads and moves."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.config.partitions import PartitionKey, by_side
from graphmill.vocab import Bucket, Side
from train.edges.negative_sampling import Batch
from train.edges.one_vs_all import QueryBatch

Key = TypeVar("Key", bound=Hashable)
AnyBatch = TypeVar("AnyBatch", Batch, QueryBatch, Batch | QueryBatch)


@dataclass(eq=False)
class Table:
    """The embeddings of one partition and the state of their optimizer.

    Attributes:
        embeddings_ND: rows; the last `num_outside` are of other partitions (train/tables/outside_rows.py).
        sums: squared gradients: [N] with row-wise Adagrad, [N, D] with element-wise.
    """

    embeddings_ND: Tensor
    sums: Tensor
    num_outside: int = 0

    def __len__(self) -> int:
        return len(self.embeddings_ND)

    def rows(self, rows: slice) -> Self:
        """Some rows of the table, in its memory."""
        return type(self)(self.embeddings_ND[rows], self.sums[rows])

    def copied(self) -> Self:
        """The same rows in memory of their own."""
        return type(self)(self.embeddings_ND.clone(), self.sums.clone())

    def fill(self, rows: slice, other: "Table") -> None:
        """Copy all rows of another table to some rows of this one."""
        self.embeddings_ND[rows] = other.embeddings_ND
        self.sums[rows] = other.sums

    def like(self, num_rows: int, device: torch.device) -> Self:
        """Make an empty table of `num_rows` such rows."""
        shapes = [(num_rows, *tensor.shape[1:]) for tensor in (self.embeddings_ND, self.sums)]
        if (
            device.type == "cpu"
        ):  # numpy asks for huge pages, which random reads of rows want, and torch does not
            embeddings_ND, sums = (torch.from_numpy(np.empty(shape, np.float32)) for shape in shapes)
        else:
            embeddings_ND, sums = (torch.empty(shape, device=device) for shape in shapes)
        return type(self)(embeddings_ND, sums)


def joined(tables: MutableMapping[Key, Table], keys: Sequence[Key], num_more: int = 0) -> Table:
    """Join tables, and make `tables` its parts, one by one to save memory; `num_more` rows are behind."""
    first, stop = tables[keys[0]], 0
    table = first.like(sum(len(tables[key]) for key in keys) + num_more, first.embeddings_ND.device)
    for key in keys:
        own = slice(stop, stop := stop + len(tables[key]))
        table.fill(own, tables[key])
        tables[key] = table.rows(own)
    return table


def num_rows_of(
    config: PbgConfig, bucket: Bucket, tables: Mapping[PartitionKey, Table]
) -> dict[Side, list[tuple[int, int]]]:
    """List, for each side, the rows of each relation's table, and how many of them are outside."""
    sides = [by_side(config, number, bucket, tables) for number in range(len(config.relations))]
    return {side: [(len(pair[side]), pair[side].num_outside) for pair in sides] for side in Side}


def with_tables(
    config: PbgConfig, cut: Iterable[AnyBatch], bucket: Bucket, tables: Mapping[PartitionKey, Table]
) -> Iterator[tuple[AnyBatch, dict[Side, Table]]]:
    """Pair each batch of a bucket with the tables of its relation."""
    for batch in cut:
        yield batch, by_side(config, batch.relation, bucket, tables)
