"""The words that all stages share.

Raw id     the name of an entity in the user's tables
Partition  a slice of one entity type's rows, numbered from 0
Index      a row's number within its partition, from 0
Bucket     the edges between one lhs partition and one rhs partition
Split      a named part of the edges: train, valid, test
"""

from enum import StrEnum
from typing import NamedTuple

Partition = int

TRAIN_SPLIT = "train"
RECORD = "run.json"
MAX_WEIGHT = 1e15  # of an edge and of a relation: Adagrad's sums of larger gradients leave float32


class Side(StrEnum):
    """The end of an edge."""

    LHS = "lhs"
    RHS = "rhs"

    @property
    def other(self) -> "Side":
        """The opposite end."""
        return Side.RHS if self is Side.LHS else Side.LHS


class Bucket(NamedTuple):
    """The edges with lhs in one partition and rhs in another."""

    lhs: int
    rhs: int

    def __str__(self) -> str:
        return f"({self.lhs}, {self.rhs})"
